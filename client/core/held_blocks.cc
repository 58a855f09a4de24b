// SPDX-License-Identifier: Apache-2.0
#include "client/core/held_blocks.h"

namespace kvtier::client {

const HeldBlocks::Row* HeldBlocks::Find(BlockHandle block) const {
  if (block.index.value >= rows_.size()) return nullptr;
  const Row& row = rows_[block.index.value];
  return row.generation == block.generation && row.holds > 0 ? &row : nullptr;
}

void HeldBlocks::Add(BlockHandle block) {
  if (block.index.value >= rows_.size()) rows_.resize(size_t{block.index.value} + 1);
  Row& row = rows_[block.index.value];
  if (row.generation != block.generation) {
    total_ -= row.holds;
    row = {.generation = block.generation, .holds = 0};
  }
  ++row.holds;
  ++total_;
}

bool HeldBlocks::Remove(BlockHandle block) {
  if (Find(block) == nullptr) return false;
  --rows_[block.index.value].holds;
  --total_;
  return true;
}

void HeldBlocks::Forget(BlockHandle block) {
  if (Find(block) == nullptr) return;
  total_ -= rows_[block.index.value].holds;
  rows_[block.index.value].holds = 0;
}

uint32_t HeldBlocks::CountOf(BlockHandle block) const {
  const Row* const row = Find(block);
  return row == nullptr ? 0 : row->holds;
}

std::vector<ResumeClaim> HeldBlocks::Claims() const {
  std::vector<ResumeClaim> claims;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].holds == 0) continue;
    claims.push_back({{BlockIndex(static_cast<uint32_t>(i)), rows_[i].generation}, rows_[i].holds});
  }
  return claims;
}

}  // namespace kvtier::client
