// SPDX-License-Identifier: Apache-2.0
// The canary: a proof for hits. Engines cut some of their hits short and compute blocks that the
// cache has. When they store these, the bytes are compared with the cache's own, instead of being
// skipped as duplicates.
//
// The engine's bytes come to host as a block of their own, a copy, under a hash that no honest
// client asks for, so that their way down is that of every store: its limits, caps and pins hold.
// The copy goes as soon as it has been compared and nothing uses it. A block that differs by more
// than noise (kv_difference.h) is dropped, and Trust rules what else follows. The blocks of a party
// that is expelled, or of an identity that is distrusted, are misses at once and are dropped a part
// in each event. A block that something moves or holds is condemned: it is a miss, and is dropped
// when that has ended.
//
// A canary proves that two engines, or one before and after, have the same KV under one identity.
// It proves neither that both are right nor that weights are equal whose KV differs by less than
// rounding does.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <unordered_map>

#include "tiers/space/disk_slots.h"
#include "tiers/space/host_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/pins.h"
#include "tiers/transfer/kv_difference.h"
#include "tiers/types/block_view.h"
#include "tiers/types/cache_requests.h"

namespace kvtier {

// Event loop only; a thread of the executor compares.
class Canary {
 public:
  using Evict = std::function<EvictOutcome(const BlockKey&)>;

  // `evict` drops a block from all tiers, as Cache::Evict.
  Canary(CacheState* state, HostSlots* host, DiskSlots* disk, Evict evict)
      : state_(*state), host_(*host), disk_(*disk), evict_(std::move(evict)) {}

  // An entry for the copy of a block that an engine wants to be compared; kNoEntry if host has not
  // got the block, or it is being compared just now, or too many are, or too many identities of its
  // tenant are distrusted.
  [[nodiscard]] EntryIndex BeginCopy(EntryIndex stored, const StoreRequest& request,
                                     Party computed);
  [[nodiscard]] bool IsCopy(EntryIndex entry) const {
    return !copies_.empty() && copies_.contains(entry);
  }
  // The copy has left its region: it is compared, or forgotten if it did not come to host.
  void EndCopy(EntryIndex copy);
  // Drops a block that is about to be stored anew if it must not be served as it is. Returns true
  // if it is still there, because something uses it.
  [[nodiscard]] bool KeepsRefused(EntryIndex entry);
  // Nothing is said of the identity any more.
  void Forgive(NamespaceId whose);

  // Drops the next part of the blocks that must not be served.
  void GoOn();
  // Tries again to drop those that are condemned.
  void Tick();
  [[nodiscard]] bool Idle() const { return comparisons_.empty() && copies_.empty(); }

 private:
  struct Copy {
    EntryRef stored;
    Party computed;
    KvNumbers numbers;
  };
  struct Comparison {
    Copy copy;
    EntryRef entry;  // the copy's
    HostPin copy_pin;
    HostPin stored_pin;
    KvDifference difference;
  };
  // Blocks to be dropped: all of the identity, or those of one party.
  struct Purge {
    NamespaceId whose;
    std::optional<Party> party;
    uint32_t next_row = 0;
  };
  using Comparisons = std::list<Comparison>;

  void Finish(Comparisons::iterator comparison);
  void OnDifferent(const Comparison& comparison, EntryIndex stored);
  void DropCopy(EntryRef copy);
  // Now or, if something uses it, later. Returns true if it is gone.
  bool Drop(EntryIndex entry);
  // It is a miss from now on, and is dropped when nothing uses it.
  void Condemn(EntryRef block);
  [[nodiscard]] bool Concerns(const Purge& purge, EntryIndex entry) const;
  [[nodiscard]] std::span<const std::byte> PayloadOf(EntryIndex entry);

  CacheState& state_;
  HostSlots& host_;
  DiskSlots& disk_;
  const Evict evict_;
  std::unordered_map<EntryIndex, Copy> copies_;  // on their way to host
  Comparisons comparisons_;
  std::deque<Purge> purges_;
  std::deque<EntryRef> condemned_;
  size_t tries_left_ = 0;  // of the first condemned ones
};

}  // namespace kvtier
