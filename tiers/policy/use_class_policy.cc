// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/use_class_policy.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tiers/policy/survival_table.h"

namespace kvtier {
namespace {

constexpr uint32_t kRequestsPerLesson = 256;

class UseClassPolicy final : public EvictionPolicy {
 public:
  explicit UseClassPolicy(std::function<uint32_t()> now_s) : now_s_(std::move(now_s)) {
    for (size_t i = 1; i < lists_.size(); ++i) {
      lists_[i] = EntryList::SharingLinksOf(lists_[0]);
    }
  }

  void Insert(EntryIndex entry, const BlockFacts& facts) override {
    lists_[ListOf(facts)].PushHot(entry);
    Hold(entry, facts);
  }

  void InsertCold(EntryIndex entry, const BlockFacts& facts) override {
    lists_[ListOf(facts)].PushCold(entry);
    Hold(entry, facts);
  }

  void Touch(EntryIndex entry, const BlockFacts& facts) override {
    Remove(entry);
    Insert(entry, facts);
  }

  void Remove(EntryIndex entry) override {
    if (!Contains(entry)) return;
    const Held& held = held_[entry.value];
    lists_[held.list].Remove(entry);
    if (held.parent != kNoEntry) --children_[held.parent.value];
  }

  bool Contains(EntryIndex entry) const override { return lists_[0].Contains(entry); }

  EntryIndex Victim() const override {
    const EntryIndex leaving = lists_[kLeaving].coldest();
    if (leaving != kNoEntry && !HasChildren(leaving)) return leaving;
    const uint32_t now_s = now_s_();
    EntryIndex victim = kNoEntry;
    double lowest = std::numeric_limits<double>::infinity();
    bool has_children = true;
    for (size_t use_class = 0; use_class < kLeaving; ++use_class) {
      const EntryIndex coldest = lists_[use_class].coldest();
      if (coldest == kNoEntry) continue;
      const bool is_parent = HasChildren(coldest);
      if (is_parent && !has_children) continue;
      const double rank = survival_.Rank(use_class, IdleS(coldest, now_s));
      if (is_parent == has_children && rank >= lowest) continue;
      victim = coldest;
      lowest = rank;
      has_children = is_parent;
    }
    return victim == kNoEntry ? leaving : victim;
  }

  size_t size() const override {
    size_t total = 0;
    for (const EntryList& list : lists_) total += list.size();
    return total;
  }

  size_t memory_bytes() const override {
    return lists_[0].memory_bytes() + held_.memory_bytes() + children_.memory_bytes() +
           survival_.memory_bytes();
  }

  void NoteUse(const BlockFacts& facts) override {
    survival_.EndEpisode(facts.hash, facts.last_use_s);
  }

  void NoteRequest() override {
    if (++requests_ % kRequestsPerLesson == 0) survival_.Learn(now_s_());
  }

 private:
  // Times are kept by their last 29 bits, which tell 17 years apart.
  static constexpr int kTimeBits = 29;
  static constexpr uint32_t kTimeMask = (1u << kTimeBits) - 1;

  // The list behind those of the classes: of what leaves first.
  static constexpr size_t kLeaving = SurvivalTable::kClasses;

  struct Held {
    EntryIndex parent = kNoEntry;  // in whose count of children the block is
    uint32_t last_use_s : kTimeBits = 0;
    uint32_t list : 3 = 0;
  };
  static_assert(sizeof(Held) == 8);

  [[nodiscard]] static size_t ListOf(const BlockFacts& facts) {
    return facts.leaves_first ? kLeaving : SurvivalTable::ClassOf(facts.uses);
  }

  // Remembers the facts of a block that a list has got.
  void Hold(EntryIndex entry, const BlockFacts& facts) {
    const auto list = static_cast<uint32_t>(ListOf(facts));
    const bool counted = facts.parent != kNoEntry && AddChild(facts.parent);
    held_.At(entry.value) = {.parent = counted ? facts.parent : kNoEntry,
                             .last_use_s = facts.last_use_s & kTimeMask,
                             .list = list & 7};
    // A block that its client will not use again does not tell how others of its class fare.
    if (!facts.leaves_first) survival_.BeginEpisode(facts.hash, list, facts.last_use_s);
  }
  // False if the parent's count is full: the child is not counted then.
  [[nodiscard]] bool AddChild(EntryIndex parent) {
    uint16_t& count = children_.At(parent.value);
    if (count == UINT16_MAX) return false;
    ++count;
    return true;
  }
  // A block's entry stays while blocks that follow it are in a tier, so that a row with children is
  // not given to another block.
  [[nodiscard]] bool HasChildren(EntryIndex entry) const {
    const uint16_t* count = children_.Find(entry.value);
    return count != nullptr && *count > 0;
  }
  [[nodiscard]] uint32_t IdleS(EntryIndex entry, uint32_t now_s) const {
    const uint32_t idle_s = (now_s - held_[entry.value].last_use_s) & kTimeMask;
    // A clock that went back by a little.
    return idle_s > kTimeMask / 2 ? 0 : idle_s;
  }

  const std::function<uint32_t()> now_s_;
  std::array<EntryList, kLeaving + 1> lists_;  // by class, and kLeaving; they share their links
  PagedArray<Held> held_;
  PagedArray<uint16_t> children_;  // of each row, how many are in the order
  SurvivalTable survival_;
  uint32_t requests_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeUseClassPolicy(std::function<uint32_t()> now_s) {
  return std::make_unique<UseClassPolicy>(std::move(now_s));
}

}  // namespace kvtier
