// SPDX-License-Identifier: Apache-2.0
#include "tiers/state/pinned_slabs.h"

#include "base/result.h"

namespace kvtier {

void PinnedSlabs::Add(uint64_t slab, uint64_t bytes) {
  Pinned& pinned = slabs_[slab];
  if (pinned.bytes == 0) {
    pinned.slots = allocator_->ClassAt(slab * allocator_->slab_bytes());
  } else {
    Leave(pinned.slots, {pinned.bytes, slab});
  }
  pinned.bytes += bytes;
  Enter(pinned.slots, {pinned.bytes, slab});
}

void PinnedSlabs::Remove(uint64_t slab, uint64_t bytes) {
  const auto found = slabs_.find(slab);
  KVT_CHECK(found != slabs_.end() && found->second.bytes >= bytes);
  Pinned& pinned = found->second;
  Leave(pinned.slots, {pinned.bytes, slab});
  pinned.bytes -= bytes;
  if (pinned.bytes > 0) {
    Enter(pinned.slots, {pinned.bytes, slab});
  } else {
    slabs_.erase(found);
  }
}

void PinnedSlabs::Enter(const SlotClass& slots, const BytesAndSlab& slab) {
  by_class_[slots].insert(slab);
  all_.insert(slab);
  if (Beyond(slab)) ++beyond_;
}

void PinnedSlabs::Leave(const SlotClass& slots, const BytesAndSlab& slab) {
  const auto of_class = by_class_.find(slots);
  of_class->second.erase(slab);
  if (of_class->second.empty()) by_class_.erase(of_class);
  if (Beyond(slab)) {
    --beyond_;
  } else if (*held_from_ == slab) {
    ++held_from_;
  }
  all_.erase(slab);
}

std::optional<uint64_t> PinnedSlabs::LeastBeyond(uint64_t most_held, uint64_t steps,
                                                 const MayGo& may_go) {
  if (all_.size() <= most_held) return std::nullopt;
  const uint64_t beyond = all_.size() - most_held;
  for (; beyond_ < beyond; ++beyond_) ++held_from_;
  for (; beyond_ > beyond; --beyond_) --held_from_;
  std::optional<BytesAndSlab> least;
  for (const auto& [slots, slabs] : by_class_) {
    if (!may_go(slots)) continue;
    uint64_t left = steps;
    for (const BytesAndSlab& slab : slabs) {
      if (left-- == 0 || (least && *least < slab)) break;
      if (allocator_->Leaving(slab.second * allocator_->slab_bytes())) continue;
      least = slab;
      break;
    }
  }
  if (!least || !Beyond(*least)) return std::nullopt;
  return least->second;
}

}  // namespace kvtier
