// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/duel_policy.h"

#include "tiers/policy/use_class_policy.h"

namespace kvtier {
namespace {

class DuelPolicy final : public EvictionPolicy {
 public:
  DuelPolicy(const std::function<uint32_t()>& now_s, EvictionDuel::Capacity capacity)
      : lru_(MakeLruPolicy()),
        classes_(MakeUseClassPolicy(now_s)),
        duel_({MakeLruPolicy(), MakeUseClassPolicy(now_s)}, capacity) {}

  void Insert(EntryIndex entry, const BlockFacts& facts) override {
    lru_->Insert(entry, facts);
    classes_->Insert(entry, facts);
    duel_.NoteRelease(entry, facts);
  }
  void InsertCold(EntryIndex entry, const BlockFacts& facts) override {
    lru_->InsertCold(entry, facts);
    classes_->InsertCold(entry, facts);
  }
  void Touch(EntryIndex entry, const BlockFacts& facts) override {
    lru_->Touch(entry, facts);
    classes_->Touch(entry, facts);
    if (facts.leaves_first) duel_.NoteHint(facts);
  }
  void Remove(EntryIndex entry) override {
    lru_->Remove(entry);
    classes_->Remove(entry);
  }
  bool Contains(EntryIndex entry) const override { return lru_->Contains(entry); }
  EntryIndex Victim() const override { return (duel_.second_leads() ? classes_ : lru_)->Victim(); }
  size_t size() const override { return lru_->size(); }
  size_t memory_bytes() const override {
    return lru_->memory_bytes() + classes_->memory_bytes() + duel_.memory_bytes();
  }
  void NoteUse(const BlockFacts& facts) override { classes_->NoteUse(facts); }
  void NoteRequest() override { classes_->NoteRequest(); }

 private:
  const std::unique_ptr<EvictionPolicy> lru_;
  const std::unique_ptr<EvictionPolicy> classes_;
  EvictionDuel duel_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeDuelPolicy(std::function<uint32_t()> now_s,
                                               EvictionDuel::Capacity capacity) {
  return std::make_unique<DuelPolicy>(now_s, capacity);
}

}  // namespace kvtier
