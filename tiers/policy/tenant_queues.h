// SPDX-License-Identifier: Apache-2.0
// Queues of what waits to be moved: what a client waits for goes before prefetches, and tenants
// with quotas take turns with all others, so that a tenant that waits for space under its own cap
// holds up none but itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

#include "tiers/policy/tenant_table.h"

namespace kvtier {

// Event loop only.
template <typename Item>
class PriorityQueue {
 public:
  void Push(Item item) { now_.push_back(std::move(item)); }
  // It goes when nothing else is left.
  void PushLater(Item item) { later_.push_back(std::move(item)); }
  // Moves all items that could wait, and for which `urgent` holds, to those that can wait no
  // longer. Looks at all that can wait.
  template <typename Predicate>
  void Promote(const Predicate& urgent) {
    const auto first = std::stable_partition(later_.begin(), later_.end(),
                                             [&](const Item& item) { return !urgent(item); });
    now_.insert(now_.end(), std::make_move_iterator(first), std::make_move_iterator(later_.end()));
    later_.erase(first, later_.end());
  }

  [[nodiscard]] size_t size() const { return now_.size() + later_.size(); }
  [[nodiscard]] bool empty() const { return now_.empty() && later_.empty(); }
  [[nodiscard]] std::deque<Item>* now() { return &now_; }
  [[nodiscard]] std::deque<Item>* later() { return &later_; }
  // The items whose turn it is.
  [[nodiscard]] std::deque<Item>* next() { return now_.empty() ? &later_ : &now_; }

 private:
  std::deque<Item> now_;
  std::deque<Item> later_;
};

// One queue for each tenant with quotas, and one for all others. Event loop only.
template <typename Item>
class TenantQueues {
 public:
  explicit TenantQueues(uint32_t lanes) : lanes_(lanes) {}

  void Push(TenantId lane, Item item) { lanes_[lane.value].Push(std::move(item)); }
  // See PriorityQueue.
  void PushLater(TenantId lane, Item item) { lanes_[lane.value].PushLater(std::move(item)); }
  template <typename Predicate>
  void Promote(const Predicate& urgent) {
    for (auto& lane : lanes_) lane.Promote(urgent);
  }
  [[nodiscard]] size_t size() const {
    size_t total = 0;
    for (const auto& lane : lanes_) total += lane.size();
    return total;
  }
  [[nodiscard]] bool empty() const { return size() == 0; }

  // Lets the lines take steps in turn, one each, until none can: `step(std::deque<Item>*)` gets a
  // line that is not empty and says whether it got on. True if any did.
  template <typename Step>
  bool TakeTurns(const Step& step) {
    bool progressed = false;
    for (size_t idle = 0; idle < lanes_.size();) {
      next_ = next_ + 1 < lanes_.size() ? next_ + 1 : 0;
      ++idle;
      if (lanes_[next_].empty() || !step(lanes_[next_].next())) continue;
      progressed = true;
      idle = 0;
    }
    return progressed;
  }
  template <typename Visit>
  void ForEachLine(const Visit& visit) {
    for (auto& lane : lanes_) {
      visit(lane.now());
      visit(lane.later());
    }
  }

 private:
  std::vector<PriorityQueue<Item>> lanes_;
  size_t next_ = 0;
};

}  // namespace kvtier
