// SPDX-License-Identifier: Apache-2.0
// Decoding and the checksum of what was decoded in one pass.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/digest.h"
#include "tools/bench/codec/bf16_codec.h"

namespace kvtier {

// DecodeBf16, and what ChecksumPayload gives for `raw` then; nothing where that returns false.
[[nodiscard]] std::optional<PayloadChecksum> DecodeChecked(std::span<const std::byte> encoded,
                                                           std::span<std::byte> raw,
                                                           VectorLevel level = WidestVectorLevel());

}  // namespace kvtier
