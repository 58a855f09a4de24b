// SPDX-License-Identifier: Apache-2.0
// Asks the cold store for blocks of a prefix that no tier of this host has, before the acquire that
// wants them is served. Blocks that the store names become entries that a load can bring to host;
// from there on the acquire is served as if they were on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/block_taker.h"

namespace kvtier {

// Event loop only. An acquire that waits for the store stands in no pool's line: it holds up no
// other, and is served in the order of the answers.
class ColdLookup {
 public:
  // Serves an acquire for which there is nothing more to ask.
  using Done = std::function<void(Result<AcquireReply>)>;
  using Serve = std::function<void(AcquireRequest, Done)>;

  ColdLookup(CacheState* state, PrefixFinder* finder, Serve serve)
      : state_(*state), finder_(*finder), serve_(std::move(serve)) {}

  // Serves the acquire now if this host has all that it asks for, if its caller has asked the store
  // (AcquireRequest::cold), or if the store is away;
  // otherwise when the store has answered, at the latest after options.cold_lookup_deadline_ms.
  // REQUIRES: its session is open and its pool is known.
  void Acquire(AcquireRequest request, Done done);
  // Asks which of these blocks the store has, a prefix's from its first on or each for itself.
  // `done` gets a value for each, false of blocks that were erased here, or none at all if the
  // store is away, fails or is late: from a later event, or within the call.
  void Ask(NamespaceId namespace_id, const std::vector<BlockHash>& hashes, ColdAsk ask,
           std::function<void(std::vector<bool>)> done);
  // Answers those of the session that wait, or only those for `pool`. Errors: as Acquirer::Cancel.
  void Cancel(SessionId session, std::optional<PoolId> pool);
  [[nodiscard]] size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    AcquireRequest request;
    Done done;
    std::vector<uint32_t> asked;  // positions among the request's hashes
    uint64_t number = 0;
  };
  using Offers = std::vector<BlockKey>;

  // Begins the question, counted. REQUIRES: the store is available.
  void Exists(NamespaceId whose, std::vector<std::string> names, ColdAsk ask,
              ColdStore::ExistsDone done);
  // The hashes to be asked for: those that this host does not have, from the first on.
  [[nodiscard]] std::vector<uint32_t> Missing(const AcquireRequest& request);
  void OnAnswer(uint64_t number, const Result<std::vector<bool>>& answer);
  // A failure is told with its reason, too, unless the store tells it: that it is late, or away.
  void Count(NamespaceId whose, ColdAsk ask, const Result<std::vector<bool>>& answer);
  // The store's share of the requested blocks, without a gap.
  [[nodiscard]] static ColdHits HitsOf(const Waiting& waiting, const std::vector<bool>& present);
  // Serves the acquire, with entries for these blocks until its loads have taken them.
  void ServeWith(const ColdHits& hits, AcquireRequest request, Done done);
  [[nodiscard]] Offers Offer(const ColdHits& hits, const AcquireRequest& request);
  // Ends the offers that no load of the acquire has taken, and their entries.
  void CancelOffers(const Offers& offers);

  CacheState& state_;
  PrefixFinder& finder_;
  Serve serve_;
  std::list<Waiting> waiting_;
  uint64_t next_number_ = 1;
  Gate gate_;
};

}  // namespace kvtier
