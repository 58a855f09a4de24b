// SPDX-License-Identifier: Apache-2.0
// One session's requests about the blocks of its pools: COMMIT, RELEASE, PREFETCH, PIN, HINT and
// TOKENS.
#pragma once

#include <cstdint>

#include "base/gate.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/session/replies.h"
#include "daemon/session/session_client.h"
#include "protocol/block_messages.h"
#include "tiers/cache.h"

namespace kvtier {

// A client may expect a sequence back within a day.
inline constexpr int64_t kMaxReturnsInMs = int64_t{24} * 60 * 60 * 1000;

// Event loop only. Each method answers one request. An error that it returns becomes the answer and
// leaves the state as it was; success means that the reply was queued, or will be by a later event.
// Every field of `request` is within the bounds of the wire format, and is otherwise unchecked when
// the method begins. Views in `request` point into the frame and are valid during the call only. It
// is the same for all handlers of a session.
class BlockHandler {
 public:
  // Everything is borrowed and outlives the handler.
  BlockHandler(const SessionClient* client, AttachedPools* pools, Replies* replies, Cache* cache,
               const ServerConfig* config)
      : client_(*client), pools_(*pools), replies_(*replies), cache_(*cache), config_(*config) {}

  Status OnCommit(const Call& call, const wire::Commit& request);
  Status OnRelease(const Call& call, const wire::Release& request);
  Status OnPrefetch(const Call& call, const wire::Prefetch& request);
  Status OnPin(const Call& call, const wire::Pin& request);
  Status OnHint(const Call& call, const wire::Hint& request);
  Status OnTokens(const Call& call, const wire::Tokens& request);

 private:
  using CommitSteps = Steps<wire::CommitItem, wire::CommitReply>;
  using ReleaseSteps = Steps<BlockHandle, wire::ReleaseReply>;
  using PrefetchSteps = Steps<BlockHash, wire::PrefetchReply>;
  // All are counted before the first is pinned, so that a PIN is refused as a whole.
  struct PinSteps : Steps<BlockHash, wire::PinReply> {
    int64_t ttl_ms = 0;
    bool allowed = false;
    uint64_t more = 0;
  };

  // The deepest are done first.
  struct HintSteps : Steps<BlockHash, wire::HintReply> {
    SequenceHint hint{};
    int64_t returns_in_ms = 0;
  };

  // The steps of Replies::WorkInSteps.
  [[nodiscard]] bool CommitSome(CommitSteps* steps);
  [[nodiscard]] bool ReleaseSome(ReleaseSteps* steps);
  [[nodiscard]] bool PrefetchSome(PrefetchSteps* steps);
  [[nodiscard]] bool PinSome(PinSteps* steps);
  [[nodiscard]] bool HintSome(HintSteps* steps);
  [[nodiscard]] Status CommitOne(PoolId pool, const AttachedPool& attached,
                                 const wire::CommitItem& item, bool* duplicate);
  // PREFETCH of a region, which an event of the cache answers. REQUIRES: it was checked.
  void PrefetchToHost(const Call& call, const wire::Prefetch& request);

  const SessionClient& client_;
  AttachedPools& pools_;
  Replies& replies_;
  Cache& cache_;
  const ServerConfig& config_;
  // Last, so that it closes before anything that the cache's answers would use is destroyed.
  Gate gate_;
};

}  // namespace kvtier
