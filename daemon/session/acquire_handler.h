// SPDX-License-Identifier: Apache-2.0
// One session's ACQUIRE, which concerns all groups of a model at once, and LOOKUP. Both may wait
// for the store that hosts share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/gate.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/session/cold_questions.h"
#include "daemon/session/group_acquire.h"
#include "daemon/session/load_events.h"
#include "daemon/session/replies.h"
#include "daemon/session/session_client.h"
#include "gpu/counter_page.h"
#include "protocol/block_messages.h"
#include "tiers/cache.h"

namespace kvtier {

// Acquires of one session that may wait for blocks at once. The next request is not read before one
// of them is answered, so that a client cannot pile up waiting requests in the daemon's memory. An
// engine seldom has more than a few dozen requests to begin in one step.
inline constexpr uint32_t kMaxAcquiresInFlight = 64;

// Event loop only. It owns the events of the session's loads; BlockHandler says how requests are
// answered.
class AcquireHandler {
 public:
  // Everything is borrowed and outlives the handler, but `counters`, the page that loads of this
  // session are counted in.
  AcquireHandler(const SessionClient* client, AttachedPools* pools, Replies* replies, Cache* cache,
                 const Config* config, EventLoop* loop, std::shared_ptr<CounterPage> counters)
      : client_(*client),
        pools_(*pools),
        replies_(*replies),
        cache_(*cache),
        config_(*config),
        loop_(*loop),
        counters_(std::move(counters)),
        load_events_(loop, &replies->connection()) {}

  Status OnAcquire(const Call& call, const wire::Acquire& request);
  Status OnLookup(const Call& call, const wire::Lookup& request);
  // Takes the cache's reports of the session's loads; may be called from within any call of the
  // cache.
  void OnLoadProgress(const LoadProgress& progress) { load_events_.Report(progress); }

 private:
  // Checks a request for the groups of one model. Errors: those of AttachedPools; kInvalidArgument
  // "other_model", "group_twice", "group_missing" (hashes are asked for, but not of every group).
  [[nodiscard]] Result<ModelHold> CheckParts(const std::vector<wire::Acquire::Part>& parts) const;
  // Everything that can be refused before the cache is asked. Errors: those of CheckParts;
  // kLimitExceeded "too_many_blocks", "too_many_hashes"; kInvalidArgument "empty_request";
  // kUnsupported "partial_blocks".
  [[nodiscard]] Status CheckAcquire(const wire::Acquire& request) const;
  // REQUIRES: CheckAcquire passed. The hashes are copied, because an acquire may outlive its frame.
  [[nodiscard]] AcquireRequest ToCache(const Call& call, const wire::Acquire& request,
                                       const wire::Acquire::Part& part) const;
  void AcquireGroups(const Call& call, const wire::Acquire& request);
  // The answer of the cache, for one group or several. It may come after the session has ended, and
  // then only the trace is completed. `wished`: the request says which hits are worth loading, and
  // the answer has the forecast.
  void OnAcquired(const Call& call, Result<std::vector<GroupAcquire::AcquiredPart>> acquired,
                  bool wished);
  // A lookup that takes several turns at the loop, and its state between them.
  struct LookupSteps;
  [[nodiscard]] bool LookUpSome(const std::shared_ptr<LookupSteps>& steps);
  // Asks the store until its deadline has passed since the first question.
  [[nodiscard]] ColdAsker AskerOfStore() const;
  void AskColdStore(const std::shared_ptr<LookupSteps>& steps);
  void AnswerLookup(const LookupSteps& steps);

  const SessionClient& client_;
  AttachedPools& pools_;
  Replies& replies_;
  Cache& cache_;
  const Config& config_;
  EventLoop& loop_;
  const std::shared_ptr<CounterPage> counters_;
  uint32_t acquires_in_flight_ = 0;
  LoadEvents load_events_;
  // Last, so that it closes before anything that the cache's answers would use is destroyed.
  Gate gate_;
};

}  // namespace kvtier
