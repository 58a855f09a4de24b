// SPDX-License-Identifier: Apache-2.0
// The count of processes that may have died of the blocks that an earlier one left.
#pragma once

#include <cstdint>
#include <utility>

namespace kvtier {

// Some deaths are chance. A daemon that dies of the blocks that it finds would do so for ever; this
// many are fewer than systemd allows in a minute. A daemon that finds so many begins empty.
inline constexpr uint32_t kMaxUnfinishedAdoptions = 5;

// Part of a table in kept memory: its count of adoptions in a row that have begun and not ended:
// their daemons died before they had looked at everything in the memory, perhaps because of what
// they found.
class AdoptionCount {
 public:
  [[nodiscard]] uint32_t unfinished_adoptions() const { return unfinished_; }
  // A process begins to use the blocks, at most once, and has lived to look at all of them.
  void BeginAdoption() {
    adopting_ = true;
    ++unfinished_;
  }
  void EndAdoption() {
    adopting_ = false;
    unfinished_ = 0;
  }
  // The process ends in order: if it has begun and not ended, that was not because of the blocks.
  void TakeBackAdoption() {
    if (std::exchange(adopting_, false)) --unfinished_;
  }

 protected:
  // `unfinished` lies in the table.
  explicit AdoptionCount(uint32_t* unfinished) : unfinished_(*unfinished) {}

 private:
  uint32_t& unfinished_;
  bool adopting_ = false;
};

}  // namespace kvtier
