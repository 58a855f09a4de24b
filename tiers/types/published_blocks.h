// SPDX-License-Identifier: Apache-2.0
// An engine says of its own memory which block of a region holds which hash right now.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"

namespace kvtier {

// The engine publishes a block when its bytes are complete, and retracts it before it launches
// anything that writes them; each publishing has a number of its own. So bytes that were read
// between two looks which found one number are the block's. Event loop only.
class PublishedBlocks {
 public:
  struct Asked {
    BlockIndex block;
    BlockHash hash;
  };
  // By block: the number under which it holds the hash; 0: it does not, or that is not known.
  using Answer = std::function<void(const std::vector<uint64_t>& numbers)>;

  virtual ~PublishedBlocks() = default;
  // Looks after it was called and calls `answer` in an event of its own. An engine that holds up
  // the reader of its table keeps it from answering for ever.
  virtual void Look(std::vector<Asked> blocks, Answer answer) const = 0;
};

}  // namespace kvtier
