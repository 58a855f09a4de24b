// SPDX-License-Identifier: Apache-2.0
// What moved in one direction between tiers, and for how long anything was moving: bytes by busy
// time is the throughput that was reached, whatever the share of idle time.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvtier {

enum class CopyLane : uint8_t { kPoolToHost = 0, kHostToPool, kHostToDisk, kDiskToHost };
inline constexpr int kCopyLaneCount = 4;
[[nodiscard]] std::string_view CopyLaneName(CopyLane lane);

// Several copies may be under way at once; their time counts once. Event loop only.
class CopyMeter {
 public:
  void Begin(int64_t now_ms) {
    Account(now_ms);
    ++under_way_;
  }
  // REQUIRES: a Begin before.
  void End(int64_t now_ms) {
    Account(now_ms);
    --under_way_;
  }
  // Time until the last Begin or End in which something was under way.
  [[nodiscard]] uint64_t busy_ms() const { return busy_ms_; }
  [[nodiscard]] uint64_t under_way() const { return under_way_; }

 private:
  void Account(int64_t now_ms) {
    if (under_way_ > 0 && now_ms > since_ms_) busy_ms_ += static_cast<uint64_t>(now_ms - since_ms_);
    since_ms_ = now_ms;
  }

  uint64_t under_way_ = 0;
  uint64_t busy_ms_ = 0;
  int64_t since_ms_ = 0;
};

}  // namespace kvtier
