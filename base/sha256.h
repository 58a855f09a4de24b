// SPDX-License-Identifier: Apache-2.0
// SHA-256 through OpenSSL, with the algorithm fetched once.
#pragma once

#include <cstddef>
#include <span>

#include "base/digest.h"

namespace kvtier {

// May be called from any thread.
[[nodiscard]] Digest256 Sha256(std::span<const std::byte> data);

}  // namespace kvtier
