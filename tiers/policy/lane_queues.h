// SPDX-License-Identifier: Apache-2.0
// What waits to be moved, one line for each tenant with quotas and one for all others, so that a
// tenant that waits for room under its own cap holds up nobody else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "tiers/policy/tenant_table.h"
#include "tiers/policy/urgent_line.h"

namespace kvtier {

// Event loop only.
template <typename Item>
class LaneQueues {
 public:
  explicit LaneQueues(uint32_t lanes) : lanes_(lanes) {}

  void Push(TenantId lane, Item item) { lanes_[lane.value].Push(std::move(item)); }
  // See UrgentLine.
  void PushLater(TenantId lane, Item item) { lanes_[lane.value].PushLater(std::move(item)); }
  template <typename Predicate>
  void Hasten(const Predicate& urgent) {
    for (auto& lane : lanes_) lane.Hasten(urgent);
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
  std::vector<UrgentLine<Item>> lanes_;
  size_t next_ = 0;
};

}  // namespace kvtier
