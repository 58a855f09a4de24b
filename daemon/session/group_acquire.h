// SPDX-License-Identifier: Apache-2.0
// An acquire over the groups of a model: the longest prefix that every group can restore, and of
// each group the blocks that this prefix needs; or none of them.
//
// A prefix that ends early on this host may go on in the store that hosts share, which is asked
// before the first try only.
//
// The groups' blocks are acquired from the cache in one event, one acquire each. If one of them
// turns out to lack a block (it was dropped while the acquire waited for free blocks, or its pool
// cannot hold them all), everything is given back and a shorter prefix is tried. When the session
// leaves one of the pools, the blocks acquired there have gone with it; the rest is given back,
// and the acquire has ended.
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
#include "daemon/session/cold_questions.h"
#include "protocol/restorable_prefix.h"
#include "tiers/cache.h"

namespace kvtier {

// After this many prefixes that could not be had, an acquire is served without hits. The bound
// keeps a request from going round for ever while other clients evict the blocks that it asks for;
// a request without hits is always a correct answer.
inline constexpr int kMaxGroupAcquireTries = 3;

// Event loop only. The object is owned by the callbacks that it waits for, and so lives exactly as
// long as an answer of the cache is outstanding. When the session's gate has closed, those
// callbacks do nothing: no answer is given, and the blocks that were acquired so far are dropped by
// Cache::CloseSession.
class GroupAcquire : public std::enable_shared_from_this<GroupAcquire> {
 public:
  struct Part {
    AcquireRequest request;         // without hashes: each try has its own
    std::vector<BlockHash> hashes;  // the group's blocks, from block 0 on
    NamespaceId namespace_id;       // of the request's pool
    GroupRule rule;
    Gate::Pass attachment;  // of the request's pool; closed: the session has left that
  };
  struct AcquiredPart {
    PoolId pool;
    uint32_t first_hit = 0;  // its place in the part's hashes
    AcquireReply reply;
  };
  // How the session hears of the acquire. A load begins before the client can know of it, since its
  // reply waits for the other groups; the load's events have to be kept back meanwhile, and are
  // discarded when the try is rolled back.
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

  // Asks the store, if there is one and this host does not have all, and begins the first try.
  // REQUIRES: called once, on an object that a shared_ptr owns. `on_done` may be called within this
  // call. Its errors are those of Cache::Acquire; on success all pools are attached.
  void Start(ColdAsker asker);

 private:
  // The session has left the pool of a part, and may have attached it anew.
  [[nodiscard]] bool Detached() const;
  // The longest prefix of at most `most_tokens` that every group can restore from any tier, or 0.
  // It costs one lookup per block, which is bounded by the session's max_hashes_per_call.
  [[nodiscard]] uint64_t FindPrefix(uint64_t most_tokens) const;
  // Asks where this host has each part's first blocks, as many as `most_tokens` reach.
  [[nodiscard]] std::vector<std::vector<uint8_t>> LookUp(uint64_t most_tokens) const;
  [[nodiscard]] std::vector<GroupPresence> Groups(
      const std::vector<std::vector<uint8_t>>& present) const;
  // The needed blocks of a part that the store has.
  [[nodiscard]] ColdHits ColdHitsOf(size_t part, const BlockRange& needed) const;
  // Asks the cache, one acquire per group, for what this prefix needs. The cache may answer within
  // the call.
  void Try(uint64_t prefix_tokens);
  void OnPartAcquired(size_t part, Result<AcquireReply> acquired);
  // Called when every part has its answer: hands the blocks to the listener if all groups got the
  // blocks of the prefix, otherwise posts a rollback.
  void Finish();
  // Gives everything back, then tries a shorter prefix, or reports the refusal. It runs as an event
  // of its own, because the cache must not be called from within its own callback.
  void RollBack();
  // The longest prefix, in tokens, that a next try may hope for, by the blocks that the parts got
  // in this one. It equals prefix_tokens_ if every part got all that it needs.
  [[nodiscard]] uint64_t ReachableTokens() const;

  Cache& cache_;
  EventLoop& loop_;
  Gate& gate_;
  const std::vector<Part> parts_;
  const Listener listener_;
  ColdPresence cold_;  // by part; empty if the store was not asked
  int tries_ = 0;
  uint64_t prefix_tokens_ = 0;
  // Why the block after the prefix is not served: the miss of the last try that was rolled back.
  MissReason miss_ = MissReason::kUnknown;
  // Parts of the current try that the cache has not answered yet.
  size_t unanswered_ = 0;
  // By part: the blocks that the current prefix needs, as places in the part's hashes.
  std::vector<BlockRange> needed_;
  // The cache's answers by part; empty where it has not answered or has refused.
  std::vector<AcquireReply> replies_;
  // The last error that a part of the current try met.
  std::optional<Error> refusal_;
};

}  // namespace kvtier
