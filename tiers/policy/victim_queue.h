// SPDX-License-Identifier: Apache-2.0
// The order of eviction of one tier, with its front made ready ahead of need.
//
// The policy's coldest blocks move into the prepared queue, where each is copied to the tier below;
// eviction takes from the front of that queue and so finds clean blocks. A block that is used goes
// back to the policy. Preparation costs one step per block that nears its end, not a scan.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "tiers/policy/entry_list.h"
#include "tiers/policy/eviction_policy.h"

namespace kvtier {

// Event loop only.
class VictimQueue {
 public:
  explicit VictimQueue(std::unique_ptr<EvictionPolicy> policy) : policy_(std::move(policy)) {}

  // REQUIRES: !Contains(entry).
  void Insert(EntryIndex entry, const BlockFacts& facts) { policy_->Insert(entry, facts); }
  // Does nothing if the entry is not held.
  void Remove(EntryIndex entry) {
    prepared_.Remove(entry);
    policy_->Remove(entry);
  }
  // The block was used: back to the policy's hot side, prepared or not.
  void Touch(EntryIndex entry, const BlockFacts& facts) {
    prepared_.Remove(entry);
    policy_->Touch(entry, facts);
  }
  [[nodiscard]] bool Contains(EntryIndex entry) const {
    return prepared_.Contains(entry) || policy_->Contains(entry);
  }

  // Moves blocks into the prepared queue until it holds `target` (or nothing is left), calling
  // `prepare` for each; `prepare` must not change this queue.
  void Prepare(size_t target, const std::function<void(EntryIndex)>& prepare) {
    while (prepared_.size() < target && policy_->size() > 0) {
      const EntryIndex entry = policy_->Victim();
      policy_->Remove(entry);
      prepared_.PushHot(entry);
      prepare(entry);
    }
  }

  // The next to be evicted, or the next to be prepared; kNoEntry if there is none.
  [[nodiscard]] EntryIndex Coldest() const {
    return prepared_.empty() ? policy_->Victim() : prepared_.coldest();
  }
  [[nodiscard]] EntryIndex ColdestUnprepared() const { return policy_->Victim(); }

  // The next to be evicted among the prepared, or kNoEntry.
  [[nodiscard]] EntryIndex Front() const { return prepared_.coldest(); }
  [[nodiscard]] EntryIndex After(EntryIndex entry) const { return prepared_.Hotter(entry); }

  [[nodiscard]] size_t size() const { return prepared_.size() + policy_->size(); }
  [[nodiscard]] size_t prepared() const { return prepared_.size(); }
  [[nodiscard]] size_t memory_bytes() const {
    return prepared_.memory_bytes() + policy_->memory_bytes();
  }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  EntryList prepared_;
};

}  // namespace kvtier
