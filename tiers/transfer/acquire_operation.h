// SPDX-License-Identifier: Apache-2.0
// One acquire, from the call to its answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tiers/cache.h"
#include "tiers/state/session_table.h"
#include "tiers/transfer/prefix_finder.h"
#include "tiers/types/entry_index.h"

namespace kvtier {

struct AcquireOperation {
  AcquireRequest request;
  std::function<void(Result<AcquireReply>)> done;
  int64_t deadline_ms = 0;
  // What is to be taken; `to_load` says how many loads may still begin.
  FoundPrefix found;
  // One per hit found: the referenced block, which cannot be evicted any more, or kNoBlock for one
  // that still has to be loaded. These are the operation's references: the session can neither
  // release nor use them before it has the reply.
  HeldReferences held;

  bool has_waited = false;
  bool waits = false;  // for room; else it is answered, or goes on with the next event
  bool begun = false;  // the first part has been taken
  // Holds the hits that were taken.
  AcquireReply reply;
  std::vector<EntryIndex> in_layers;  // of those, what is to be loaded in layers

  [[nodiscard]] size_t taken() const { return reply.hits.size(); }
  [[nodiscard]] bool all_hits_taken() const { return taken() == found.hits.size(); }
  // Free blocks that it needs yet.
  [[nodiscard]] uint64_t blocks_left() const {
    return uint64_t{found.to_load} + request.new_blocks;
  }
  // It has what it needs for its next part, but for an event.
  [[nodiscard]] bool goes_on() const { return begun && !waits; }
};

}  // namespace kvtier
