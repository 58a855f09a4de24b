// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/drive_health.h"

#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvtier {

// A drive that is full, or whose keys are gone, does not fail; neither do requests that the end of
// the process cancels count.
void DriveHealth::Note(uint32_t drive, const Status& status) {
  uint32_t& refusals = refusals_[drive];
  const bool refused = !status && status.error().code == ErrorCode::kIoError &&
                       status.error().reason != "ENOSPC" && status.error().reason != "EDQUOT";
  if (status) {
    refusals = 0;
  } else if (refused && ++refusals >= kMostRefusals) {
    (void)Fail(drive, status.error().ToString());
  }
}

bool DriveHealth::Fail(uint32_t drive, const std::string& why) {
  const uint32_t bit = uint32_t{1} << drive;
  const uint32_t serving = state_.env.geometry.drives_mask() & ~failed_;
  if ((serving & bit) == 0 || std::popcount(serving) == 1) return false;
  failed_ |= bit;
  state_.incidents.ReportDrive(state_.env.geometry.FileOfDrive(drive), why);
  on_failed_(drive);
  return true;
}

void DriveHealth::Sync(std::function<void(const Status&)> done) {
  struct Syncs {
    size_t left = 0;
    Status status;
    std::function<void(const Status&)> done;
  };
  const auto syncs = std::make_shared<Syncs>();
  syncs->done = std::move(done);
  std::vector<uint32_t> files;
  for (uint32_t file = 0; file < state_.env.files.size(); ++file) {
    const uint32_t drive = state_.env.geometry.DriveOfFile(file);
    if ((failed_ >> drive & 1) == 0) files.push_back(file);
  }
  syncs->left = files.size();
  for (const uint32_t file : files) {
    state_.env.files[file]->Sync([this, syncs, file](const Status& status) {
      const uint32_t drive = state_.env.geometry.DriveOfFile(file);
      const bool given_up = !status && status.error().code == ErrorCode::kIoError &&
                            ((failed_ >> drive & 1) != 0 || Fail(drive, status.error().ToString()));
      if (!status && !given_up && syncs->status) syncs->status = status;
      if (--syncs->left == 0) syncs->done(syncs->status);
    });
  }
}

}  // namespace kvtier
