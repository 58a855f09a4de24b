// SPDX-License-Identifier: Apache-2.0
// An acquire over the groups of a model: the longest prefix that every group can restore, and of
// each group the blocks that this prefix needs; or none of them.
//
// A prefix that ends early on this host may go on in the store that hosts share, which is asked
// about all groups at once, and only once.
//
// The groups' blocks are acquired in one event, one acquire each. If one of them turns out to lack
// a block (it was dropped while the acquire waited for free blocks, or its pool cannot hold them
// all), everything is given back and a shorter prefix is tried. No client hears of a load before
// its acquire is answered.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/gate.h"
#include "base/ids.h"
#include "base/result.h"
#include "protocol/restorable_prefix.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/session_table.h"
#include "tiers/transfer/block_taker.h"
#include "tiers/transfer/cold_questions.h"
#include "tiers/transfer/load_table.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// After this many prefixes that could not be had, an acquire is served without hits. The bound
// keeps a request from going round for ever while other clients evict what it asks for; a request
// without hits is always a correct answer.
inline constexpr int kMaxGroupAcquireTries = 3;

// Event loop only.
class GroupAcquirer {
 public:
  using Done = std::function<void(Result<std::vector<GroupReply>>)>;
  // Serves the acquire of one group, now or later.
  using Serve = std::function<void(AcquireRequest, std::function<void(Result<AcquireReply>)>)>;

  // `ask` is empty where there is no store that hosts share.
  GroupAcquirer(CacheState* state, PrefixFinder* finder, LoadTable* loads, SessionTable* sessions,
                Serve serve, ColdAsker ask)
      : state_(*state),
        finder_(*finder),
        loads_(*loads),
        sessions_(*sessions),
        serve_(std::move(serve)),
        ask_(std::move(ask)) {}

  // See Cache::AcquireGroups. REQUIRES: the session is open, and the pools are known.
  void Acquire(std::vector<GroupPart> parts, Done done);
  // Answers the acquires of a session that closes or, with `pool`, of which a group belongs to the
  // pool that it leaves; errors as of Acquirer::Cancel, which is to be called after this.
  // References and new blocks in other pools are given back; those of a session that closes go with
  // it.
  void Cancel(SessionId session, std::optional<PoolId> pool);
  // Tries shorter prefixes for the acquires that fell short. True if there were any.
  bool Pump();
  // Acquires that are not answered yet.
  [[nodiscard]] size_t waiting() const { return operations_.size(); }

 private:
  struct Operation {
    std::vector<GroupPart> parts;
    Done done;
    ColdPresence cold;  // by part; empty if the store was not asked
    int tries = 0;
    uint64_t prefix_tokens = 0;
    // Why the block after the prefix is not served: what the last try that was given up met.
    MissReason miss = MissReason::kUnknown;
    // Parts of the current try that have not been answered.
    size_t unanswered = 0;
    // By part: the blocks that the current prefix needs, as places in the part's hashes.
    std::vector<BlockRange> needed;
    // By part: empty where there is no answer, or a refusal.
    std::vector<AcquireReply> replies;
    // The last error that a part of the current try met.
    std::optional<Error> refusal;
    // A shorter prefix is to be tried, of at most so many tokens.
    std::optional<uint64_t> next_tokens;

    [[nodiscard]] SessionId session() const { return parts.front().request.session; }
  };
  using Operations = std::map<uint64_t, Operation>;  // by number, in the order of the calls
  static constexpr uint64_t kAll = UINT64_MAX;

  // The longest prefix of at most `most_tokens` that every group can restore from any tier, or 0.
  // It costs one look-up for each block.
  [[nodiscard]] uint64_t FindPrefix(const Operation& operation, uint64_t most_tokens);
  // Which of each part's first blocks the tiers of this host have, as many as `most_tokens` reach.
  [[nodiscard]] std::vector<std::vector<uint8_t>> LookUp(const Operation& operation,
                                                         uint64_t most_tokens);
  // Asks for what this prefix needs, one acquire for each group.
  void Try(uint64_t number, uint64_t prefix_tokens);
  void OnPartAcquired(Operations::iterator operation, size_t part, Result<AcquireReply> acquired);
  // Every part has its answer: answers the acquire, or gives everything back.
  void Finish(Operations::iterator operation);
  void Answer(Operations::iterator operation);
  // The blocks and the load that a part got, of which no client has heard.
  void GiveBack(SessionId session, PoolId pool, const AcquireReply& reply);

  CacheState& state_;
  PrefixFinder& finder_;
  LoadTable& loads_;
  SessionTable& sessions_;
  const Serve serve_;
  const ColdAsker ask_;
  Operations operations_;
  uint64_t next_number_ = 1;
  Gate gate_;
};

}  // namespace kvtier
