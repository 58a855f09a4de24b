// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/entry_list.h"
#include "tiers/policy/eviction_policy.h"

namespace kvtier {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  void Insert(EntryIndex entry, const BlockFacts&) override { list_.PushHot(entry); }
  void Touch(EntryIndex entry, const BlockFacts&) override { list_.Touch(entry); }
  void Remove(EntryIndex entry) override { list_.Remove(entry); }
  bool Contains(EntryIndex entry) const override { return list_.Contains(entry); }
  EntryIndex Victim() const override { return list_.coldest(); }
  EntryIndex VictimAfter(EntryIndex entry) const override { return list_.Hotter(entry); }
  size_t size() const override { return list_.size(); }
  size_t memory_bytes() const override { return list_.memory_bytes(); }

 private:
  EntryList list_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace kvtier
