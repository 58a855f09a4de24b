// SPDX-License-Identifier: Apache-2.0
// A line of what waits to be moved, in which what somebody waits for goes before the rest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

namespace kvtier {

// Event loop only.
template <typename Item>
class UrgentLine {
 public:
  void Push(Item item) { now_.push_back(std::move(item)); }
  // It goes when nothing else is left.
  void PushLater(Item item) { later_.push_back(std::move(item)); }
  // What could wait and of which `urgent` holds can wait no longer. Looks at all that can wait.
  template <typename Predicate>
  void Hasten(const Predicate& urgent) {
    const auto first = std::stable_partition(later_.begin(), later_.end(),
                                             [&](const Item& item) { return !urgent(item); });
    now_.insert(now_.end(), first, later_.end());
    later_.erase(first, later_.end());
  }

  [[nodiscard]] size_t size() const { return now_.size() + later_.size(); }
  [[nodiscard]] bool empty() const { return now_.empty() && later_.empty(); }
  [[nodiscard]] std::deque<Item>* now() { return &now_; }
  [[nodiscard]] std::deque<Item>* later() { return &later_; }
  // Those whose turn it is.
  [[nodiscard]] std::deque<Item>* next() { return now_.empty() ? &later_ : &now_; }

 private:
  std::deque<Item> now_;
  std::deque<Item> later_;
};

}  // namespace kvtier
