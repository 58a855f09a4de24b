// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/load_waiters.h"

#include <boost/unordered/unordered_flat_map.hpp>
#include <vector>

namespace kvtier {

struct LoadWaiters::Table {
  boost::unordered_flat_map<uint64_t, uint32_t> first;  // row, by block
  std::vector<Row> rows;
  uint32_t free = kNone;
};

LoadWaiters::LoadWaiters() : table_(std::make_unique<Table>()) {}
LoadWaiters::~LoadWaiters() = default;

void LoadWaiters::Add(uint64_t block, const LoadWaiter& waiter) {
  Table& table = *table_;
  uint32_t row = table.free;
  if (row == kNone) {
    row = static_cast<uint32_t>(table.rows.size());
    table.rows.emplace_back();
  } else {
    table.free = table.rows[row].next;
  }
  uint32_t& first = table.first.try_emplace(block, kNone).first->second;
  table.rows[row] = {waiter, first};
  first = row;
}

uint32_t LoadWaiters::FirstOf(uint64_t block) const {
  const auto found = table_->first.find(block);
  return found == table_->first.end() ? kNone : found->second;
}

uint32_t LoadWaiters::Extract(uint64_t block) {
  const auto found = table_->first.find(block);
  if (found == table_->first.end()) return kNone;
  const uint32_t row = found->second;
  table_->first.erase(found);
  return row;
}

const LoadWaiters::Row& LoadWaiters::At(uint32_t row) const { return table_->rows[row]; }

LoadWaiters::Row LoadWaiters::Free(uint32_t row) {
  Table& table = *table_;
  const Row taken = table.rows[row];
  table.rows[row].next = table.free;
  table.free = row;
  return taken;
}

}  // namespace kvtier
