// SPDX-License-Identifier: Apache-2.0
// The drives of the disk tier that serve. One that refuses again and again, or whose directory is
// gone, is given up until a restart, so that it does not hold up the others. The last drive never
// is: there are no others, and its errors pause all writing instead (DiskSlots).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <string>

#include "base/gate.h"
#include "base/result.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Hears which drives are given up. Event loop only; DiskSlots implements it.
class DriveOwner {
 public:
  virtual void OnDriveFailed(uint32_t drive) = 0;

 protected:
  ~DriveOwner() = default;
};

// A file system is full, which is no fault of its drive.
[[nodiscard]] bool IsForWantOfRoom(const Status& status);

enum class DriveRequest : uint8_t { kRead, kWrite };

// Event loop only. No callback comes after the files have been destroyed.
class DriveHealth {
 public:
  // So many writes in a row that a drive has refused are enough, or so many reads and one of its
  // first page: a file system that has become read-only takes every read between.
  static constexpr uint32_t kMostRefusals = 4;

  // Both are borrowed. `owner` hears of each drive that is given up.
  DriveHealth(CacheState* state, DriveOwner* owner) : state_(*state), owner_(*owner) {}

  // A request to the drive has ended so.
  void Note(uint32_t drive, DriveRequest request, const Status& status);
  // Gives the drive up. False if it is the last, or was given up before.
  bool Fail(uint32_t drive, const std::string& why);
  // Syncs the files of the drives that serve. A drive whose sync fails may have lost all that it
  // took before: it is given up, and the rest counts. With an error if it is the last.
  void Sync(std::function<void(const Status&)> done);

  // Bit by number.
  [[nodiscard]] uint32_t failed() const { return failed_; }
  // Drives of the set that are away, or were given up.
  [[nodiscard]] uint32_t CountMissing() const {
    return static_cast<uint32_t>(std::popcount(state_.env.drives_away | failed_));
  }
  [[nodiscard]] bool Failed(DiskLocation location) const {
    return failed_ != 0 && (failed_ >> state_.env.geometry.DriveOf(location) & 1) != 0;
  }

 private:
  void Ask(uint32_t drive, const std::string& why);
  // Whether the answer to a sync says something of all writes: not if the drive alone is given up.
  [[nodiscard]] bool Counts(uint32_t drive, const Status& synced);

  CacheState& state_;
  DriveOwner& owner_;
  uint32_t failed_ = 0;
  std::array<std::array<uint32_t, 2>, kMaxDrives> refusals_{};  // in a row, by DriveRequest
  Gate gate_;
};

}  // namespace kvtier
