// SPDX-License-Identifier: Apache-2.0
// Decodes a message and encodes it again: what decodes must give back the same bytes, or the format
// has two ways to say one thing. Shared by the unit tests and the fuzzer.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/result.h"
#include "protocol/frame.h"

namespace kvtier::wire {

// The whole frame again, as its message's Encode writes it. Errors: those of Decode; kNotFound
// "unknown_type" for a type that no message has.
[[nodiscard]] Result<std::vector<std::byte>> Reencode(const Frame& frame);

}  // namespace kvtier::wire
