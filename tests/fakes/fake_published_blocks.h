// SPDX-License-Identifier: Apache-2.0
// An engine of tests publishes what its region holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/fakes/fake_loop.h"
#include "tiers/types/published_blocks.h"

namespace kvtier {

// The looks are events of `source`, which may run at any time after the call, also when this has
// gone.
class FakePublishedBlocks final : public PublishedBlocks {
 public:
  FakePublishedBlocks(FakeLoop* loop, EventSource source) : loop_(*loop), source_(source) {}

  void Publish(BlockIndex block, const BlockHash& hash) {
    table_->blocks[block] = {hash, ++table_->last};
  }
  void Retract(BlockIndex block) { table_->blocks.erase(block); }
  // From now on no look is answered.
  void Hang() { hangs_ = true; }

  void Look(std::vector<Asked> blocks, Answer answer) const override {
    if (hangs_) return;
    loop_.PostFrom(
        source_, [table = table_, blocks = std::move(blocks), answer = std::move(answer)] {
          std::vector<uint64_t> numbers;
          for (const Asked& asked : blocks) {
            const auto found = table->blocks.find(asked.block);
            const bool is_it = found != table->blocks.end() && found->second.hash == asked.hash;
            numbers.push_back(is_it ? found->second.number : 0);
          }
          answer(numbers);
        });
  }

 private:
  struct Published {
    BlockHash hash;
    uint64_t number = 0;
  };
  struct Table {
    std::map<BlockIndex, Published> blocks;
    uint64_t last = 0;
  };
  FakeLoop& loop_;
  const EventSource source_;
  const std::shared_ptr<Table> table_ = std::make_shared<Table>();
  bool hangs_ = false;
};

}  // namespace kvtier
