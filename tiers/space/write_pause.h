// SPDX-License-Identifier: Apache-2.0
// The pause of all writes after a drive has refused one, and their end.
#pragma once

#include <cstdint>

namespace kvtier {

// Event loop only.
class WritePause {
 public:
  [[nodiscard]] bool under_way() const { return until_ms_ > 0; }
  // Writes that are under way together fail together, and begin one pause.
  void Begin(int64_t now_ms) {
    if (!under_way()) ++in_a_row_;
    until_ms_ = now_ms + kLengthMs;
  }
  void Tick(int64_t now_ms) {
    if (now_ms >= until_ms_) until_ms_ = 0;
  }
  // The drive that refused has been given up.
  void Forget() { until_ms_ = in_a_row_ = 0; }
  void OnWritten() { in_a_row_ = 0; }

  // Nothing is written any more.
  void Stop() { is_stopped_ = true; }
  [[nodiscard]] bool is_stopped() const { return is_stopped_; }

  // While a drain is under way, which has the time, writes wait for a pause's end, but not again
  // and again, so that each drain ends.
  void SetDraining(bool is_draining) { is_draining_ = is_draining; }
  [[nodiscard]] bool is_waited_out() const {
    return is_draining_ && !is_stopped_ && in_a_row_ < kMostInARow;
  }

 private:
  static constexpr int64_t kLengthMs = 10'000;
  static constexpr int64_t kMostInARow = 4;

  int64_t until_ms_ = 0;
  int64_t in_a_row_ = 0;  // without a write that succeeded
  bool is_draining_ = false;
  bool is_stopped_ = false;
};

}  // namespace kvtier
