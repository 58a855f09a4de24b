// SPDX-License-Identifier: Apache-2.0
// Which blocks of one pool the application holds, and how often: what a client claims when it
// resumes its session with the next daemon.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/acquired.h"
#include "base/ids.h"

namespace kvtier::client {

// A row for each block that was ever held, so that an acquire of thousands costs microseconds. Not
// thread-safe.
class HeldBlocks {
 public:
  // One hold more. Holds of an earlier generation end: the block has been another's since.
  void Add(BlockHandle block);
  // One hold less. False if there was none.
  bool Remove(BlockHandle block);
  // All holds of the block end.
  void Forget(BlockHandle block);
  [[nodiscard]] uint32_t CountOf(BlockHandle block) const;
  [[nodiscard]] bool empty() const { return total_ == 0; }
  // Claims of all blocks, in order of index.
  [[nodiscard]] std::vector<ResumeClaim> Claims() const;

 private:
  struct Row {
    uint32_t generation = 0;
    uint32_t holds = 0;
  };
  // Null if the block of this generation is not held.
  [[nodiscard]] const Row* Find(BlockHandle block) const;

  std::vector<Row> rows_;
  uint64_t total_ = 0;
};

}  // namespace kvtier::client
