// SPDX-License-Identifier: Apache-2.0
// Orders of eviction: of one pool, and of a tier that tenants with quotas share.
//
// A shared tier keeps one order for each tenant with quotas and one for all others: the coldest of
// one tenant is found as fast as the coldest of all, and a tenant whose blocks must stay is passed
// over at once. The cost of a choice grows with the tenants that have quotas, not with blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/tenant_table.h"

namespace kvtier {

// The order of eviction of one tier, with its front made ready ahead of need.
//
// The policy's coldest blocks move into the prepared queue, where each is copied to the tier below;
// eviction takes from the front of that queue and so finds clean blocks. A block that is used goes
// back to the policy. Preparation costs one step per block that nears its end, not a scan. Event
// loop only.
class VictimQueue {
 public:
  // Returns the facts of a block if it is spared (its turn came, and it is put back to the hot
  // side), else nothing.
  using Spares = std::function<std::optional<BlockFacts>(EntryIndex)>;
  // Before each block that is prepared, so many are spared at most: where all are to be spared, the
  // coldest goes nevertheless.
  static constexpr int kMostSpared = 64;
  // How much a block makes up of a target: at least 1, and the same for as long as it is held.
  using Weighs = std::function<uint64_t(EntryIndex)>;

  // Without `weighs` each block makes up 1.
  explicit VictimQueue(std::unique_ptr<EvictionPolicy> policy, Spares spares = nullptr,
                       Weighs weighs = nullptr)
      : policy_(std::move(policy)), spares_(std::move(spares)), weighs_(std::move(weighs)) {}

  // REQUIRES: !Contains(entry).
  void Insert(EntryIndex entry, const BlockFacts& facts) {
    LookAnew();
    policy_->Insert(entry, facts);
  }
  // As the coldest of those that are not prepared. REQUIRES: !Contains(entry).
  void InsertCold(EntryIndex entry, const BlockFacts& facts) { policy_->InsertCold(entry, facts); }
  // Does nothing if the entry is not held.
  void Remove(EntryIndex entry) {
    LookAnew();
    RemovePrepared(entry);
    policy_->Remove(entry);
  }
  // The block was used: back to the policy's hot side, prepared or not.
  void Touch(EntryIndex entry, const BlockFacts& facts) {
    LookAnew();
    RemovePrepared(entry);
    policy_->Touch(entry, facts);
  }
  // The same for a block that cannot leave now.
  void PassOver(EntryIndex entry, const BlockFacts& facts) {
    const uint64_t before = passed_over_;
    Touch(entry, facts);
    passed_over_ = before + 1;
  }
  // All were passed over since one came, left or was used, or might leave after all (LookAnew).
  [[nodiscard]] bool AllPassedOver() const { return passed_over_ >= size(); }
  void LookAnew() { passed_over_ = 0; }
  [[nodiscard]] bool Contains(EntryIndex entry) const {
    return prepared_.Contains(entry) || policy_->Contains(entry);
  }

  // Moves blocks into the prepared queue until it holds `target` (or nothing is left), calling
  // `prepare` for each; `prepare` must not change this queue.
  void Prepare(uint64_t target, const std::function<void(EntryIndex)>& prepare) {
    uint64_t steps = UINT64_MAX;
    Prepare(target, prepare, &steps);
  }
  // The same for `*steps` blocks at most, from which it takes those that it moved.
  void Prepare(uint64_t target, const std::function<void(EntryIndex)>& prepare, uint64_t* steps) {
    for (; prepared_weight_ < target && policy_->size() > 0 && *steps > 0; --*steps) {
      const EntryIndex entry = NextVictim();
      policy_->Remove(entry);
      prepared_.PushHot(entry);
      prepared_weight_ += WeightOf(entry);
      prepare(entry);
    }
  }

  // For policies that learn; see EvictionPolicy.
  void NoteUse(const BlockFacts& facts) { policy_->NoteUse(facts); }
  void NoteRequest() { policy_->NoteRequest(); }

  // The next to be evicted, or the next to be prepared; kNoEntry if there is none.
  [[nodiscard]] EntryIndex Coldest() const {
    return prepared_.empty() ? policy_->Victim() : prepared_.coldest();
  }
  [[nodiscard]] EntryIndex ColdestUnprepared() const { return policy_->Victim(); }

  // The next to be evicted among the prepared, or kNoEntry.
  [[nodiscard]] EntryIndex Front() const { return prepared_.coldest(); }
  [[nodiscard]] EntryIndex After(EntryIndex entry) const { return prepared_.Hotter(entry); }

  [[nodiscard]] size_t size() const { return prepared_.size() + policy_->size(); }
  // How much of a target the prepared blocks make up.
  [[nodiscard]] uint64_t prepared() const { return prepared_weight_; }
  [[nodiscard]] size_t memory_bytes() const {
    return prepared_.memory_bytes() + policy_->memory_bytes();
  }

 private:
  [[nodiscard]] EntryIndex NextVictim() {
    for (int spared = 0; spares_ && spared < kMostSpared; ++spared) {
      const EntryIndex entry = policy_->Victim();
      const std::optional<BlockFacts> facts = spares_(entry);
      if (!facts) return entry;
      policy_->Touch(entry, *facts);
    }
    return policy_->Victim();
  }
  [[nodiscard]] uint64_t WeightOf(EntryIndex entry) const { return weighs_ ? weighs_(entry) : 1; }
  void RemovePrepared(EntryIndex entry) {
    if (!prepared_.Contains(entry)) return;
    prepared_.Remove(entry);
    prepared_weight_ -= WeightOf(entry);
  }

  std::unique_ptr<EvictionPolicy> policy_;
  Spares spares_;
  Weighs weighs_;
  EntryList prepared_;
  uint64_t prepared_weight_ = 0;
  uint64_t passed_over_ = 0;
};

// When each entry was last touched, as far as the orders of several tenants have to be compared
// with each other. With one order alone nothing is kept: there is nothing to compare. Event loop
// only.
class TouchStamps {
 public:
  explicit TouchStamps(bool several) : several_(several) {}

  void Renew(EntryIndex entry) {
    if (several_) stamps_.At(entry.value) = ++now_;
  }
  // Older than every other.
  void MakeOldest(EntryIndex entry) {
    if (several_) stamps_.At(entry.value) = --oldest_;
  }
  // REQUIRES: several orders; renewed before.
  [[nodiscard]] uint64_t Of(EntryIndex entry) const { return stamps_[entry.value]; }
  [[nodiscard]] size_t memory_bytes() const { return stamps_.memory_bytes(); }

 private:
  const bool several_;
  // Both begin in the middle: there are more numbers on either side than touches.
  uint64_t now_ = uint64_t{1} << 63;
  uint64_t oldest_ = now_;
  PagedArray<uint64_t> stamps_;
};

// The order in which host evicts.
// Event loop only.
class TenantVictims {
 public:
  // Whether the blocks of the tenant may be chosen.
  using Admits = std::function<bool(TenantId)>;
  using Prepare = std::function<void(EntryIndex)>;

  // Whether the block is spared when its turn comes; see VictimQueue.
  using Spares = std::function<bool(EntryIndex)>;
  // The bytes of the block's slot.
  using Bytes = std::function<uint64_t(EntryIndex)>;

  TenantVictims(uint32_t lanes, Spares spares, const Bytes& bytes);

  // The block is the youngest as of now.
  void Touch(TenantId lane, EntryIndex entry) {
    stamps_.Renew(entry);
    lanes_[lane.value].Touch(entry, {});
  }
  // The block goes before all others of the lane that are not prepared, in the order of these
  // calls.
  void LeaveFirst(TenantId lane, EntryIndex entry) {
    stamps_.MakeOldest(entry);
    lanes_[lane.value].Touch(entry, {.leaves_first = true});
  }
  // The block is the coldest of all, but for those that are prepared already.
  void MakeColdest(TenantId lane, EntryIndex entry) {
    lanes_[lane.value].Remove(entry);
    stamps_.MakeOldest(entry);
    lanes_[lane.value].InsertCold(entry, {});
  }
  // Does nothing if the entry is not held.
  void Remove(TenantId lane, EntryIndex entry) { lanes_[lane.value].Remove(entry); }
  [[nodiscard]] bool Contains(TenantId lane, EntryIndex entry) const {
    return lanes_[lane.value].Contains(entry);
  }

  // The coldest of the lanes admitted, prepared if it was not; kNoEntry if there is none.
  [[nodiscard]] EntryIndex Front(const Admits& admits, const Prepare& prepare);
  // Prepares the coldest of the lanes admitted until these hold so many bytes of prepared blocks.
  // Prepares `*steps` blocks at most, which it takes from there.
  void PrepareColdest(uint64_t bytes, const Admits& admits, const Prepare& prepare,
                      uint64_t* steps);
  // The same of one lane.
  void PrepareTenant(TenantId lane, uint64_t bytes, const Prepare& prepare, uint64_t* steps) {
    lanes_[lane.value].Prepare(bytes, prepare, steps);
  }

  // The number of blocks in the lanes admitted.
  [[nodiscard]] size_t size(const Admits& admits) const;
  [[nodiscard]] size_t memory_bytes() const;

 private:
  // The lane admitted whose block by `choose` is the coldest; null if none has one.
  [[nodiscard]] VictimQueue* ColdestTenant(const Admits& admits,
                                           EntryIndex (VictimQueue::*choose)() const);

  TouchStamps stamps_;
  std::vector<VictimQueue> lanes_;
};

// The order in which the disk evicts.
// Event loop only.
class TenantRecency {
 public:
  explicit TenantRecency(uint32_t lanes) : lanes_(lanes), stamps_(lanes > 1) {}

  // The block is the youngest as of now. Inserts it if it is not held.
  void Touch(TenantId lane, EntryIndex entry) {
    stamps_.Renew(entry);
    lanes_[lane.value].Touch(entry);
  }
  // Does nothing if the entry is not held.
  void Remove(TenantId lane, EntryIndex entry) { lanes_[lane.value].Remove(entry); }
  [[nodiscard]] bool Contains(TenantId lane, EntryIndex entry) const {
    return lanes_[lane.value].Contains(entry);
  }
  [[nodiscard]] size_t size(TenantId lane) const { return lanes_[lane.value].size(); }
  [[nodiscard]] size_t memory_bytes() const;

  // The entries of the lanes admitted, the coldest first. Ends with the next change to the order.
  class Walk {
   public:
    Walk(const TenantRecency& order, const std::function<bool(TenantId)>& admits);
    // kNoEntry at the end.
    [[nodiscard]] EntryIndex Next();

   private:
    const TenantRecency& order_;
    std::vector<EntryIndex> next_;  // by lane; kNoEntry: no more, or not admitted
  };

 private:
  std::vector<EntryList> lanes_;
  TouchStamps stamps_;
};

}  // namespace kvtier
