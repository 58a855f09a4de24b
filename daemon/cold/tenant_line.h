// SPDX-License-Identifier: Apache-2.0
// Calls that wait for a store, in turns by the tenants whose objects they are for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtier {

// The tenant's part of an object's name, "kvtier/1/TENANT/..."; all of a name of another form.
[[nodiscard]] inline std::string_view TenantOf(std::string_view name) {
  size_t end = 0;
  for (int slashes = 0; slashes < 3 && end != std::string_view::npos; ++slashes) {
    end = name.find('/', end + (slashes > 0 ? 1 : 0));
  }
  return name.substr(0, end);
}

// Its owner guards it. A tenant's calls keep their order, and the tenants that have some take
// turns, a call each, so that calls of one hold up no other's, however many they are. Call: has a
// `deadline` and a `tenant`, a string; calls that are to keep one order have the same.
template <typename Call>
class TenantLine {
 public:
  using Time = std::chrono::steady_clock::time_point;

  [[nodiscard]] bool empty() const { return lines_.empty(); }
  [[nodiscard]] size_t size() const { return size_; }

  // Whether a call of another tenant waits.
  [[nodiscard]] bool HasOthersThan(const std::string& tenant) const {
    return lines_.size() > lines_.count(tenant);
  }

  void Add(Call call) {
    std::deque<Call>& line = lines_[call.tenant];
    line.push_back(std::move(call));
    ++size_;
  }
  // Before its tenant's others.
  void AddFirst(Call call) {
    std::deque<Call>& line = lines_[call.tenant];
    line.push_front(std::move(call));
    ++size_;
  }
  // The call whose turn it is, until the next one comes or goes. REQUIRES: not empty.
  [[nodiscard]] Call& first() { return Next()->second.front(); }
  // REQUIRES: not empty.
  [[nodiscard]] Call TakeFirst() {
    const auto line = Next();
    turn_ = line->first;
    Call call = std::move(line->second.front());
    line->second.pop_front();
    Took(line);
    return call;
  }
  // Calls whose deadlines have passed and that stand before all others of their tenants. One that
  // came behind a call with a later deadline may be late when it has its turn.
  [[nodiscard]] std::vector<Call> TakeLate(Time now) {
    std::vector<Call> late;
    for (auto next = lines_.begin(); next != lines_.end();) {
      const auto line = next++;
      while (!line->second.empty() && line->second.front().deadline <= now) {
        late.push_back(std::move(line->second.front()));
        line->second.pop_front();
        --size_;
      }
      if (line->second.empty()) lines_.erase(line);
    }
    return late;
  }
  // The last call of the tenant that has the most. REQUIRES: not empty.
  [[nodiscard]] Call TakeLast() {
    const auto longest =
        std::ranges::max_element(lines_, {}, [](const auto& line) { return line.second.size(); });
    Call call = std::move(longest->second.back());
    longest->second.pop_back();
    Took(longest);
    return call;
  }
  // The first deadline of those that TakeLate looks at first. REQUIRES: not empty.
  [[nodiscard]] Time FirstDeadline() const {
    const auto first = std::ranges::min_element(
        lines_, {}, [](const auto& line) { return line.second.front().deadline; });
    return first->second.front().deadline;
  }

 private:
  using Lines = std::map<std::string, std::deque<Call>>;  // none is empty

  // Tenants' turns come in the order of their names, round and round.
  [[nodiscard]] typename Lines::iterator Next() {
    const auto next = lines_.upper_bound(turn_);
    return next == lines_.end() ? lines_.begin() : next;
  }
  void Took(typename Lines::iterator line) {
    --size_;
    if (line->second.empty()) lines_.erase(line);
  }

  Lines lines_;
  std::string turn_;  // the tenant that had the last turn
  size_t size_ = 0;
};

}  // namespace kvtier
