// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/cold_lookup.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/result.h"
#include "tiers/cold/cold_object.h"
#include "tiers/state/cold_copies.h"

namespace kvtier {
namespace {

// Blocks of one question: what follows is asked for with a later acquire.
constexpr size_t kMostAsked = 4096;

// A block that was erased here, or is not to be believed, must not come back from elsewhere.
bool IsBarred(MissReason miss) {
  return miss == MissReason::kErased || miss == MissReason::kDistrusted;
}

}  // namespace

void ColdLookup::Acquire(AcquireRequest request, Done done) {
  if (request.cold) {
    const ColdHits hits = *std::exchange(request.cold, std::nullopt);
    return ServeWith(hits, std::move(request), std::move(done));
  }
  std::vector<uint32_t> asked = Missing(request);
  if (asked.empty()) return serve_(std::move(request), std::move(done));
  if (!state_.env.cold->Available()) {
    state_.stats.cold.CountLookup(ColdAnswer::kSkipped);
    return serve_(std::move(request), std::move(done));
  }
  const NamespaceId namespace_id = state_.blocks.FindPool(request.pool)->namespace_id;
  const NamespaceIdentity& identity = state_.blocks.namespaces[namespace_id.value].identity;
  std::vector<std::string> names;
  names.reserve(asked.size());
  for (const uint32_t position : asked) {
    names.push_back(ColdName(identity, request.hashes[position]));
  }
  const uint64_t number = next_number_++;
  waiting_.push_back({std::move(request), std::move(done), std::move(asked), number});
  Exists(namespace_id, std::move(names), ColdAsk::kPrefix,
         [this, number](const Result<std::vector<bool>>& answer) { OnAnswer(number, answer); });
}

void ColdLookup::Ask(NamespaceId namespace_id, const std::vector<BlockHash>& hashes, ColdAsk ask,
                     std::function<void(std::vector<bool>)> done) {
  const NamespaceIdentity& identity = state_.blocks.namespaces[namespace_id.value].identity;
  std::vector<std::string> names;
  std::vector<size_t> asked;  // positions among the hashes
  for (size_t i = 0; i < std::min(hashes.size(), kMostAsked); ++i) {
    MissReason miss = MissReason::kNone;
    (void)finder_.Servable(kNoEntry, {namespace_id, hashes[i]}, &miss);
    if (IsBarred(miss)) continue;
    names.push_back(ColdName(identity, hashes[i]));
    asked.push_back(i);
  }
  std::vector<bool> present(hashes.size());
  if (names.empty()) return done(std::move(present));
  if (!state_.env.cold->Available()) {
    state_.stats.cold.CountLookup(ColdAnswer::kSkipped);
    return done({});
  }
  Exists(namespace_id, std::move(names), ask,
         [present = std::move(present), asked = std::move(asked),
          done = std::move(done)](const Result<std::vector<bool>>& answer) mutable {
           if (!answer) return done({});
           for (size_t i = 0; i < std::min(answer->size(), asked.size()); ++i) {
             present[asked[i]] = (*answer)[i];
           }
           done(std::move(present));
         });
}

void ColdLookup::Exists(NamespaceId whose, std::vector<std::string> names, ColdAsk ask,
                        ColdStore::ExistsDone done) {
  state_.stats.cold.lookup_blocks += names.size();
  state_.env.cold->Exists(std::move(names), ask, state_.options.cold_lookup_deadline_ms,
                          gate_.WhileOpen([this, whose, ask, done = std::move(done)](
                                              const Result<std::vector<bool>>& answer) mutable {
                            Count(whose, ask, answer);
                            done(answer);
                          }));
}

// If this host has the last block, it has nearly always all of them: then the prefix is walked
// once, by the acquire itself. A block that is lost in between is asked for once what follows it
// has been dropped, too.
std::vector<uint32_t> ColdLookup::Missing(const AcquireRequest& request) {
  std::vector<uint32_t> missing;
  if (request.block_tokens == 0 || request.hashes.empty()) return missing;
  const NamespaceId namespace_id = state_.blocks.FindPool(request.pool)->namespace_id;
  MissReason last_miss = MissReason::kNone;
  const BlockKey last{namespace_id, request.hashes.back()};
  if (finder_.Servable(kNoEntry, last, &last_miss) != kNoEntry) return missing;
  EntryIndex before = kNoEntry;
  for (uint32_t i = 0; i < request.hashes.size() && missing.size() < kMostAsked; ++i) {
    MissReason miss = MissReason::kNone;
    before = finder_.Servable(before, {namespace_id, request.hashes[i]}, &miss);
    if (before != kNoEntry) continue;
    if (IsBarred(miss)) break;
    missing.push_back(i);
  }
  return missing;
}

void ColdLookup::OnAnswer(uint64_t number, const Result<std::vector<bool>>& answer) {
  const auto found = std::ranges::find(waiting_, number, &Waiting::number);
  if (found == waiting_.end()) return;
  Waiting waiting = std::move(*found);
  waiting_.erase(found);
  Done done = std::move(waiting.done);
  // The pool may have been closed meanwhile.
  if (state_.blocks.FindPool(waiting.request.pool) == nullptr) {
    return done(MakeError(ErrorCode::kNotFound, "unknown_pool"));
  }
  const ColdHits hits = answer ? HitsOf(waiting, *answer) : ColdHits();
  ServeWith(hits, std::move(waiting.request), std::move(done));
  state_.SchedulePump();
}

void ColdLookup::ServeWith(const ColdHits& hits, AcquireRequest request, Done done) {
  Offers offers = Offer(hits, request);
  if (!offers.empty()) {
    // Not within `done`, which the acquirer calls in the midst of its own work.
    done = [this, offers = std::move(offers), done = std::move(done),
            pass = gate_.MakePass()](Result<AcquireReply> reply) {
      done(std::move(reply));
      if (!pass.open()) return;
      state_.env.loop->Post(gate_.WhileOpen([this, offers] { CancelOffers(offers); }));
    };
  }
  serve_(std::move(request), std::move(done));
}

void ColdLookup::Count(NamespaceId whose, ColdAsk ask, const Result<std::vector<bool>>& answer) {
  ColdStats& stats = state_.stats.cold;
  if (!answer) {
    const bool late = answer.error().code == ErrorCode::kTimeout;
    const bool away = answer.error().code == ErrorCode::kUnavailable;
    const NamespaceIdentity& identity = state_.blocks.namespaces[whose.value].identity;
    if (!late && !away) state_.incidents.ReportCold(identity, answer.error());
    return stats.CountLookup(late ? ColdAnswer::kLate : ColdAnswer::kFailed);
  }
  const auto first = std::ranges::find(*answer, true);
  const bool found = first != answer->end() && (ask == ColdAsk::kEach || first == answer->begin());
  stats.CountLookup(found ? ColdAnswer::kFound : ColdAnswer::kAbsent);
}

// The names were asked for in the prefix's order, and what lies between them this host has, or had:
// if it is gone by now, the acquire ends there and the offers behind it are cancelled.
ColdHits ColdLookup::HitsOf(const Waiting& waiting, const std::vector<bool>& present) {
  ColdHits hits;
  const size_t answered = std::min(present.size(), waiting.asked.size());
  for (size_t i = 0; i < answered && present[i]; ++i) {
    hits.positions.push_back(waiting.asked[i]);
    hits.depths.push_back(waiting.asked[i]);
  }
  return hits;
}

ColdLookup::Offers ColdLookup::Offer(const ColdHits& hits, const AcquireRequest& request) {
  Offers offers;
  const CachePool& pool = *state_.blocks.FindPool(request.pool);
  for (size_t i = 0; i < hits.positions.size(); ++i) {
    const BlockKey key{pool.namespace_id, request.hashes[hits.positions[i]]};
    // It may have come by another way since, or been evicted by hand.
    if (OfferFromStore(&state_, key, request.block_tokens, hits.depths[i]) == kNoEntry) continue;
    // An infinite cache of all hosts would have it.
    state_.infinite_cache.Store(key.namespace_id, key.hash);
    offers.push_back(key);
  }
  return offers;
}

// The deepest first, so that no block is kept for the sake of those behind it.
void ColdLookup::CancelOffers(const Offers& offers) {
  for (auto key = offers.rbegin(); key != offers.rend(); ++key) {
    const EntryIndex index = state_.blocks.Find(*key);
    if (index == kNoEntry || !state_[index].offered() || state_[index].loading()) continue;
    state_.Apply(index, BlockEvent::kCancelOffer);
    state_.ForgetIfGone(index);
  }
}

void ColdLookup::Cancel(SessionId session, std::optional<PoolId> pool) {
  std::list<Waiting> cancelled;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto waiting = next++;
    const AcquireRequest& request = waiting->request;
    if (request.session != session || (pool && request.pool != *pool)) continue;
    cancelled.splice(cancelled.end(), waiting_, waiting);
  }
  for (Waiting& waiting : cancelled) {
    waiting.done(MakeError(ErrorCode::kCancelled, pool ? "pool_detached" : "session_closed"));
  }
}

}  // namespace kvtier
