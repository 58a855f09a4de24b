// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/eviction_duel.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

constexpr double kMostNames = 1024;
// A client can choose hashes that are all sampled: an event takes no more of them.
constexpr size_t kMostReleased = 1024;
// Loading a block takes about a tenth as long as computing it.
constexpr double kHostValue = 0.9;
constexpr double kErrorsToLead = 3;
constexpr double kErrorsToEnd = 1;
constexpr double kKeptOfSums = 1 - 1.0 / 3000;

}  // namespace

std::unique_ptr<EvictionPolicy> MakeDuelPolicy(std::function<uint32_t()> now_s,
                                               EvictionDuel::Capacity capacity) {
  return std::make_unique<DuelPolicy>(now_s, capacity);
}

EvictionDuel::EvictionDuel(Orders orders, Capacity capacity) {
  const auto blocks = static_cast<double>(capacity.pool_blocks + capacity.host_blocks);
  const double rate = blocks <= kMostNames ? 1 : kMostNames / blocks;
  if (rate < 1) sampled_below_ = static_cast<uint64_t>(std::ldexp(rate, 64));
  const auto sampled = [&](uint64_t of_blocks) {
    return static_cast<uint64_t>(std::ceil(rate * static_cast<double>(of_blocks)));
  };
  capacity_ = {sampled(capacity.pool_blocks), sampled(capacity.host_blocks)};
  for (size_t side = 0; side < shadows_.size(); ++side) {
    shadows_[side].pool = std::move(orders[side]);
  }
}

// Block hashes may differ in few of their bits only, so that these are spread first.
bool EvictionDuel::Samples(uint64_t hash) const {
  uint64_t spread = (hash ^ hash >> 32) * 0x9E37'79B9'7F4A'7C15;
  spread = (spread ^ spread >> 29) * 0xBF58'476D'1CE4'E5B9;
  return spread <= sampled_below_;
}

EntryIndex EvictionDuel::NameOf(uint64_t hash) {
  const auto [place, added] = names_by_hash_.try_emplace(hash);
  if (!added) return place->second;
  if (free_names_.empty()) {
    free_names_.push_back(EntryIndex(static_cast<uint32_t>(names_.size())));
    names_.emplace_back();
  }
  place->second = free_names_.back();
  free_names_.pop_back();
  names_[place->second.value] = {.hash = hash};
  return place->second;
}

void EvictionDuel::NoteRelease(EntryIndex entry, const BlockFacts& facts) {
  if (entry != next_released_ || sequence_.size() >= kMostReleased) EndSequence();
  next_released_ = facts.parent;
  if (Samples(facts.hash)) sequence_.push_back({NameOf(facts.hash), facts});
}

// The gains of two sequences are taken to be independent, those of a sequence's blocks are not.
void EvictionDuel::EndSequence() {
  if (sequence_.empty()) return;
  const double first = Use(0);
  const double gain = Use(1) - first;
  for (const EntryIndex name : leaving_) ForgetIfGone(name);
  leaving_.clear();
  sequence_.clear();
  lead_ = kKeptOfSums * lead_ + gain;
  variance_ = kKeptOfSums * kKeptOfSums * variance_ + gain * gain;
  const double error = std::sqrt(variance_);
  const bool leads = second_leads_ ? lead_ >= -kErrorsToEnd * error : lead_ > kErrorsToLead * error;
  // Before the second order led, only its shadow had the gains.
  if (leads != second_leads_) lead_ = variance_ = 0;
  second_leads_ = leads;
}

double EvictionDuel::Use(size_t side) {
  Shadow& shadow = shadows_[side];
  double found = 0;
  for (Released& released : sequence_) {
    uint8_t& uses = names_[released.name.value].uses[side];
    const bool in_pool = shadow.pool->Contains(released.name);
    const bool in_host = shadow.host.Contains(released.name);
    shadow.pool->Remove(released.name);
    shadow.host.Remove(released.name);
    // A block is of no use without those before it, which come later here.
    found = in_pool || in_host ? found + (in_pool ? 1 : kHostValue) : 0;
    if (!in_pool && !in_host) uses = 0;
    if (uses < UINT8_MAX) ++uses;
    released.facts.uses = uses;
    names_[released.name.value].leaves_first = released.facts.leaves_first;
  }
  for (size_t i = 0; i < sequence_.size(); ++i) {
    Released& released = sequence_[i];
    released.facts.parent = i + 1 < sequence_.size() ? sequence_[i + 1].name : kNoEntry;
    shadow.pool->NoteUse(released.facts);
    // It may be held already: two blocks of a sequence can have one name.
    shadow.pool->Touch(released.name, released.facts);
  }
  shadow.pool->NoteRequest();
  MakeRoom(&shadow);
  return found;
}

void EvictionDuel::MakeRoom(Shadow* shadow) {
  while (shadow->pool->size() > capacity_.pool_blocks) {
    const EntryIndex evicted = shadow->pool->Victim();
    shadow->pool->Remove(evicted);
    if (names_[evicted.value].leaves_first) {
      shadow->host.PushCold(evicted);
    } else {
      shadow->host.PushHot(evicted);
    }
    if (shadow->host.size() <= capacity_.host_blocks) continue;
    leaving_.push_back(shadow->host.coldest());
    shadow->host.Remove(leaving_.back());
  }
}

void EvictionDuel::ForgetIfGone(EntryIndex name) {
  for (const Shadow& shadow : shadows_) {
    if (shadow.pool->Contains(name) || shadow.host.Contains(name)) return;
  }
  // Both shadows may have lost it to the same sequence.
  if (names_by_hash_.erase(names_[name.value].hash) > 0) free_names_.push_back(name);
}

void EvictionDuel::NoteHint(const BlockFacts& facts) {
  if (!Samples(facts.hash)) return;
  EndSequence();
  const auto named = names_by_hash_.find(facts.hash);
  if (named == names_by_hash_.end()) return;
  const EntryIndex name = named->second;
  names_[name.value].leaves_first = facts.leaves_first;
  BlockFacts own = facts;
  own.parent = kNoEntry;
  for (size_t side = 0; side < shadows_.size(); ++side) {
    Shadow& shadow = shadows_[side];
    own.uses = std::max<uint8_t>(names_[name.value].uses[side], 1);
    if (shadow.pool->Contains(name)) shadow.pool->Touch(name, own);
    if (!shadow.host.Contains(name)) continue;
    shadow.host.Remove(name);
    shadow.host.PushCold(name);
  }
}

size_t EvictionDuel::memory_bytes() const {
  constexpr size_t kNodeBytes = 64;  // of the map, about
  size_t total = names_.capacity() * sizeof(Name) + names_by_hash_.size() * kNodeBytes;
  for (const Shadow& shadow : shadows_) {
    total += shadow.pool->memory_bytes() + shadow.host.memory_bytes();
  }
  return total;
}

}  // namespace kvtier
