// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/drive_health.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/superblock.h"

namespace kvtier {
namespace {

// Makes writes to several files durable. Calls `done` once, after every file has answered, since
// syncs cannot be called back, with what each said, in their order. REQUIRES: one file at least.
// Event loop only.
void SyncFiles(const std::vector<BlockFile*>& files,
               const std::function<void(const std::vector<Status>&)>& done) {
  struct Syncs {
    size_t left;
    std::vector<Status> said;
  };
  const auto syncs = std::make_shared<Syncs>(files.size(), std::vector<Status>(files.size()));
  for (size_t i = 0; i < files.size(); ++i) {
    files[i]->Sync([syncs, i, done](const Status& status) {
      syncs->said[i] = status;
      if (--syncs->left == 0) done(syncs->said);
    });
  }
}

}  // namespace

bool IsForWantOfRoom(const Status& status) {
  return !status && (status.error().reason == "ENOSPC" || status.error().reason == "EDQUOT");
}

// A drive that is full, or whose keys are gone, does not fail; neither do requests that the end of
// the process cancels count.
void DriveHealth::Note(uint32_t drive, DriveRequest request, const Status& status) {
  uint32_t& refusals = refusals_[drive][static_cast<size_t>(request)];
  const bool refused =
      !status && status.error().code == ErrorCode::kIoError && !IsForWantOfRoom(status);
  if (status) {
    refusals = 0;
  } else if (refused && ++refusals >= kMostRefusals) {
    if (request == DriveRequest::kWrite) return (void)Fail(drive, status.error().ToString());
    refusals = 0;
    Ask(drive, status.error().ToString());
  }
}

// Blocks that cannot be read may lie together, and each is read twice: a drive that still returns
// its first page stays.
void DriveHealth::Ask(uint32_t drive, const std::string& why) {
  const auto page = std::make_shared<AlignedBuffer>(kSuperblockBytes);
  const auto on_read = [this, drive, why, page](const Status& read) {
    if (!read && read.error().code == ErrorCode::kIoError) (void)Fail(drive, why);
  };
  state_.env.files[state_.env.geometry.FileOfDrive(drive)]->Read(0, page->span(),
                                                                 gate_.WhileOpen(on_read));
}

bool DriveHealth::Fail(uint32_t drive, const std::string& why) {
  const uint32_t bit = uint32_t{1} << drive;
  const uint32_t serving = state_.env.geometry.drives_mask() & ~failed_;
  if ((serving & bit) == 0 || std::has_single_bit(serving)) return false;
  failed_ |= bit;
  state_.incidents.ReportDrive(state_.env.geometry.FileOfDrive(drive), why);
  owner_.OnDriveFailed(drive);
  return true;
}

void DriveHealth::Sync(std::function<void(const Status&)> done) {
  std::vector<uint32_t> drives;
  std::vector<BlockFile*> files;
  for (uint32_t file = 0; file < state_.env.files.size(); ++file) {
    const uint32_t drive = state_.env.geometry.DriveOfFile(file);
    if ((failed_ >> drive & 1) != 0) continue;
    drives.push_back(drive);
    files.push_back(state_.env.files[file]);
  }
  SyncFiles(files, [this, drives, done = std::move(done)](const std::vector<Status>& said) {
    Status first;
    for (size_t i = 0; i < drives.size(); ++i) {
      if (!Counts(drives[i], said[i]) || !first) continue;
      first = said[i];
    }
    done(first);
  });
}

bool DriveHealth::Counts(uint32_t drive, const Status& synced) {
  if (synced || synced.error().code != ErrorCode::kIoError || IsForWantOfRoom(synced)) return true;
  return (failed_ >> drive & 1) == 0 && !Fail(drive, synced.error().ToString());
}

}  // namespace kvtier
