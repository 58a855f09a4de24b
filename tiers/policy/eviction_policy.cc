// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/eviction_policy.h"

#include "base/result.h"

namespace kvtier {

void EntryList::PushHot(EntryIndex entry) {
  Link& link = links_->At(entry.value);
  KVT_CHECK(link.hotter == kUnlinked);
  link = {.colder = hottest_, .hotter = kNoEntry};
  if (hottest_ != kNoEntry) {
    (*links_)[hottest_.value].hotter = entry;
  } else {
    coldest_ = entry;
  }
  hottest_ = entry;
  ++size_;
}

void EntryList::PushColderThan(EntryIndex hotter, EntryIndex entry) {
  if (hotter == kNoEntry) return PushHot(entry);
  Link& link = links_->At(entry.value);
  KVT_CHECK(link.hotter == kUnlinked && Contains(hotter));
  const EntryIndex colder = (*links_)[hotter.value].colder;
  link = {.colder = colder, .hotter = hotter};
  (*links_)[hotter.value].colder = entry;
  if (colder != kNoEntry) {
    (*links_)[colder.value].hotter = entry;
  } else {
    coldest_ = entry;
  }
  ++size_;
}

void EntryList::Remove(EntryIndex entry) {
  if (!Contains(entry)) return;
  Link& link = (*links_)[entry.value];
  if (link.colder != kNoEntry) {
    (*links_)[link.colder.value].hotter = link.hotter;
  } else {
    coldest_ = link.hotter;
  }
  if (link.hotter != kNoEntry) {
    (*links_)[link.hotter.value].colder = link.colder;
  } else {
    hottest_ = link.colder;
  }
  link.hotter = kUnlinked;
  --size_;
}

namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  void Insert(EntryIndex entry, const BlockFacts& facts) override {
    (facts.leaves_first ? leaving_ : list_).PushHot(entry);
  }
  void InsertCold(EntryIndex entry, const BlockFacts& facts) override {
    (facts.leaves_first ? leaving_ : list_).PushCold(entry);
  }
  void Touch(EntryIndex entry, const BlockFacts& facts) override {
    Remove(entry);
    Insert(entry, facts);
  }
  void Remove(EntryIndex entry) override {
    list_.Remove(entry);
    leaving_.Remove(entry);
  }
  bool Contains(EntryIndex entry) const override {
    return list_.Contains(entry) || leaving_.Contains(entry);
  }
  EntryIndex Victim() const override {
    return leaving_.empty() ? list_.coldest() : leaving_.coldest();
  }
  size_t size() const override { return list_.size() + leaving_.size(); }
  size_t memory_bytes() const override { return list_.memory_bytes() + leaving_.memory_bytes(); }

 private:
  EntryList list_;
  EntryList leaving_;  // what leaves first; costs nothing where there never is any
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace kvtier
