// SPDX-License-Identifier: Apache-2.0
// Block contents that follow from the block's hash, so that a test that holds a block can tell
// whether it is the right one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/digest.h"

namespace kvtier {

// Every eight bytes depend on the hash and on their position.
void FillFromHash(const BlockHash& hash, std::span<std::byte> payload);
[[nodiscard]] bool MatchesHash(const BlockHash& hash, std::span<const std::byte> payload);

// A hash for tests: uniform bits that follow from `stream` and `position`.
[[nodiscard]] BlockHash TestHash(uint64_t stream, uint64_t position);

}  // namespace kvtier
