// SPDX-License-Identifier: Apache-2.0
// Queues of what waits to be moved: what a client waits for goes before prefetches, and tenants
// take turns, so that one that waits for space under its own cap, or moves very much, holds up none
// but itself. So do the devices of a tenant, whose buses copy at the same time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <set>
#include <utility>

#include "base/ids.h"

namespace kvtier {

// A tenant's place among those that the cache has seen, with quotas or without (Blocks::LineOf).
using TenantLine = Strong<struct TenantLineTag, uint32_t>;
// A tenant's copies to and from one device (CachePool::copy_line).
using CopyLine = Strong<struct CopyLineTag, uint32_t>;

// Event loop only.
template <typename Item>
class PriorityQueue {
 public:
  void Push(Item item) { now_.push_back(std::move(item)); }
  // It goes when nothing else is left.
  void PushLater(Item item) { later_.push_back(std::move(item)); }
  // Moves items that could wait, and for which `urgent` holds, to those that can wait no longer.
  // Looks at the first kMostPromoted of those that can wait: the others have long to wait anyway.
  template <typename Predicate>
  void Promote(const Predicate& urgent) {
    const auto end =
        later_.begin() + static_cast<ptrdiff_t>(std::min(later_.size(), kMostPromoted));
    const auto first =
        std::stable_partition(later_.begin(), end, [&](const Item& item) { return !urgent(item); });
    now_.insert(now_.end(), std::make_move_iterator(first), std::make_move_iterator(end));
    later_.erase(first, end);
  }

  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const Item& item : now_) visit(item);
    for (const Item& item : later_) visit(item);
  }
  [[nodiscard]] size_t size() const { return now_.size() + later_.size(); }
  [[nodiscard]] bool empty() const { return now_.empty() && later_.empty(); }
  [[nodiscard]] std::deque<Item>* now() { return &now_; }
  [[nodiscard]] std::deque<Item>* later() { return &later_; }
  // The items whose turn it is.
  [[nodiscard]] std::deque<Item>* next() { return now_.empty() ? &later_ : &now_; }

 private:
  static constexpr size_t kMostPromoted = 8192;

  std::deque<Item> now_;
  std::deque<Item> later_;
};

// One queue for each tenant, or for each of its devices. Event loop only.
template <typename Item, typename Line = TenantLine>
class TenantQueues {
 public:
  void Push(Line line, Item item) { At(line).Push(std::move(item)); }
  // See PriorityQueue.
  void PushLater(Line line, Item item) { At(line).PushLater(std::move(item)); }
  template <typename Predicate>
  void Promote(Line line, const Predicate& urgent) {
    if (line.value < lanes_.size()) lanes_[line.value].Promote(urgent);
  }
  [[nodiscard]] size_t size() const {
    size_t total = 0;
    for (const uint32_t line : in_use_) total += lanes_[line].size();
    return total;
  }
  [[nodiscard]] size_t size(Line line) const {
    return line.value < lanes_.size() ? lanes_[line.value].size() : 0;
  }
  [[nodiscard]] bool empty() const { return size() == 0; }

  // Lets one line take a step, the first after the last one that did and that can:
  // `step(Line, PriorityQueue<Item>*)` gets a line that is not empty and says whether it got
  // on. True if one did.
  template <typename Step>
  bool TakeTurn(const Step& step) {
    for (size_t looked_at = 0; looked_at < in_use_.size();) {
      const auto after = in_use_.upper_bound(next_);
      const auto next = after == in_use_.end() ? in_use_.begin() : after;
      next_ = *next;
      if (lanes_[next_].empty()) {
        in_use_.erase(next);
        continue;
      }
      ++looked_at;
      if (step(Line(next_), &lanes_[next_])) return true;
    }
    return false;
  }
  // The same in turn, one step each, until none can. True if any did.
  template <typename Step>
  bool TakeTurns(const Step& step) {
    bool progressed = false;
    while (TakeTurn(step)) progressed = true;
    return progressed;
  }
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const uint32_t line : in_use_) lanes_[line].ForEach(visit);
  }
  // `visit(Line, PriorityQueue<Item>*)` must not push to another line.
  template <typename Visit>
  void ForEachLine(const Visit& visit) {
    for (const uint32_t line : in_use_) visit(Line(line), &lanes_[line]);
  }

 private:
  PriorityQueue<Item>& At(Line line) {
    if (line.value >= lanes_.size()) lanes_.resize(line.value + 1);
    in_use_.insert(line.value);
    return lanes_[line.value];
  }

  std::deque<PriorityQueue<Item>> lanes_;  // steps may push to another line
  // The lines that may have items: a cache may have seen any number of tenants.
  std::set<uint32_t> in_use_;
  uint32_t next_ = 0;
};

}  // namespace kvtier
