// SPDX-License-Identifier: Apache-2.0
// The drives of the disk tier that serve. One that refuses again and again, or whose directory is
// gone, is given up until a restart, so that it does not hold up the others. The last drive never
// is: there are no others, and its errors pause all writing instead (DiskSlots).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Event loop only. No callback comes after the files have been destroyed.
class DriveHealth {
 public:
  // So many requests in a row that a drive has refused, none taken between, are enough.
  static constexpr uint32_t kMostRefusals = 4;

  // `state` is borrowed. `on_failed` is called for each drive that is given up.
  DriveHealth(CacheState* state, std::function<void(uint32_t drive)> on_failed)
      : state_(*state), on_failed_(std::move(on_failed)) {}

  // A read or write of the drive has ended so.
  void Note(uint32_t drive, const Status& status);
  // Gives the drive up. False if it is the last, or was given up before.
  bool Fail(uint32_t drive, const std::string& why);
  // Syncs the files of the drives that serve. A drive whose sync fails may have lost all that it
  // took before: it is given up, and the rest counts. With an error if it is the last.
  void Sync(std::function<void(const Status&)> done);

  // Bit by number.
  [[nodiscard]] uint32_t failed() const { return failed_; }
  [[nodiscard]] bool Failed(DiskLocation location) const {
    return failed_ != 0 && (failed_ >> state_.env.geometry.DriveOf(location) & 1) != 0;
  }

 private:
  CacheState& state_;
  const std::function<void(uint32_t)> on_failed_;
  uint32_t failed_ = 0;
  std::array<uint32_t, kMaxDrives> refusals_{};  // in a row
};

}  // namespace kvtier
