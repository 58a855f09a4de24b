// SPDX-License-Identifier: Apache-2.0
// An acquire over the groups of a model: the longest prefix that every group can restore, and of
// each group the blocks that this prefix needs; or none of them.
//
// The groups' blocks are acquired from the cache in one event, one acquire each. If one of them
// turns out to lack a block (it was dropped while the acquire waited for free blocks, or its pool
// cannot hold them all), everything is given back and a shorter prefix is tried.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/gate.h"
#include "base/ids.h"
#include "base/result.h"
#include "daemon/runtime/event_loop.h"
#include "protocol/restorable_prefix.h"
#include "tiers/cache.h"

namespace kvtier {

// After so many prefixes that could not be had, an acquire is served without hits.
inline constexpr int kMaxGroupAcquireTries = 3;

// Event loop only. It keeps itself alive by the callbacks that it waits for, and ends without an
// answer when the session's gate has closed: the cache then drops what the session holds.
class GroupAcquire : public std::enable_shared_from_this<GroupAcquire> {
 public:
  struct Part {
    // `hashes` are the group's blocks from block 0 on, without partial blocks.
    AcquireRequest request;
    NamespaceId namespace_id;  // of the request's pool
    GroupRule rule;
  };
  struct AcquiredPart {
    uint32_t first_hit = 0;  // its place in the part's hashes
    AcquireReply reply;
  };
  // What the session does meanwhile. Loads begin before the client can know of them, and end
  // unseen when a try is rolled back.
  struct Listener {
    std::function<void(LoadId)> on_load;
    std::function<void(LoadId)> on_load_dropped;
    std::function<void(Result<std::vector<AcquiredPart>>)> on_done;  // once, now or later
  };

  // `cache`, `loop` and `gate` are borrowed and outlive the callbacks that the gate lets through.
  GroupAcquire(Cache* cache, EventLoop* loop, Gate* gate, std::vector<Part> parts,
               Listener listener)
      : cache_(*cache),
        loop_(*loop),
        gate_(*gate),
        parts_(std::move(parts)),
        listener_(std::move(listener)) {}

  void Start();

 private:
  // The longest prefix of at most `most_tokens` that can be restored, or 0.
  [[nodiscard]] uint64_t FindPrefix(uint64_t most_tokens) const;
  // Asks the cache for what the prefix needs.
  void Try(uint64_t prefix_tokens);
  void OnPartAcquired(size_t part, Result<AcquireReply> acquired);
  // Every part has its answer.
  void Finish();
  // Gives everything back, then tries a shorter prefix or refuses. Not within a call of the cache.
  void RollBack();
  // Of what the parts got, the most tokens that a next try may hope for.
  [[nodiscard]] uint64_t ReachableTokens() const;

  Cache& cache_;
  EventLoop& loop_;
  Gate& gate_;
  const std::vector<Part> parts_;
  const Listener listener_;
  int tries_ = 0;
  uint64_t prefix_tokens_ = 0;
  size_t unanswered_ = 0;
  std::vector<BlockRange> needed_;
  std::vector<AcquireReply> replies_;
  std::optional<Error> refusal_;
};

}  // namespace kvtier
