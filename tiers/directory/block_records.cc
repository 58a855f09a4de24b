// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/block_records.h"

namespace kvtier {

const PoolBlock BlockRecords::kUntaken;

void BlockRecords::MakePage(std::unique_ptr<Page>* page) {
  *page = std::make_unique<Page>();
  for (PoolBlock& record : **page) record.generation = 1;
}

// A handle of an earlier use names nothing: each record that is made has a generation of its own.
PoolBlock& BlockRecords::TakenAt(BlockIndex block) {
  const auto [record, made] = taken_.try_emplace(block);
  if (made) record->second.generation = ++last_generation_;
  return record->second;
}

}  // namespace kvtier
