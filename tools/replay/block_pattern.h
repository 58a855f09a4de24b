// SPDX-License-Identifier: Apache-2.0
// Block contents that can be made again from the block's hash alone: what a replay writes into
// missed blocks and expects in hits.
#pragma once

#include <cstddef>
#include <span>

#include "base/digest.h"

namespace kvtier {

// REQUIRES: block.size() is a multiple of 8 and the block is aligned to 8 bytes. Any thread.
void FillBlock(const BlockHash& hash, std::span<std::byte> block);

// True if every byte is as FillBlock made it. Same requirements.
[[nodiscard]] bool BlockMatches(const BlockHash& hash, std::span<const std::byte> block);

}  // namespace kvtier
