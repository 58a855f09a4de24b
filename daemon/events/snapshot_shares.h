// SPDX-License-Identifier: Apache-2.0
// How many snapshots the subscribers of one owner may have: each takes numbers, for which all other
// subscribers read empty batches, so that one who subscribes again and again would keep them busy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace kvtier {

// Event loop only.
class SnapshotShares {
 public:
  // So many at once, which is an owner's share of connections, and then one in this time.
  static constexpr int64_t kAtOnce = 16;
  static constexpr int64_t kEachMs = 1000;

  // Whether the owner may have one more now; counts it then.
  [[nodiscard]] bool Take(const std::string& owner, int64_t now_ms) {
    // Its earlier ones use up the time until then.
    const auto used = used_until_ms_.try_emplace(owner, now_ms).first;
    const int64_t until_ms = std::max(used->second, now_ms) + kEachMs;
    if (until_ms > now_ms + kAtOnce * kEachMs) return false;
    used->second = until_ms;
    return true;
  }
  // Forgets owners that have their whole share again. Call a few times a second.
  void Forget(int64_t now_ms) {
    std::erase_if(used_until_ms_, [now_ms](const auto& owner) { return owner.second <= now_ms; });
  }

 private:
  std::map<std::string, int64_t, std::less<>> used_until_ms_;
};

}  // namespace kvtier
