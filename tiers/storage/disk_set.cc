// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/disk_set.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/posix.h"
#include "base/result.h"
#include "base/units.h"

namespace kvtier {
namespace {

Result<Digest128> RandomUuid() {
  Digest128 uuid;
  if (::getrandom(uuid.bytes.data(), uuid.bytes.size(), 0) !=
      static_cast<ssize_t>(uuid.bytes.size())) {
    return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "getrandom"));
  }
  uuid.bytes[6] = static_cast<uint8_t>((uuid.bytes[6] & 0x0f) | 0x40);  // RFC 9562 version 4
  uuid.bytes[8] = static_cast<uint8_t>((uuid.bytes[8] & 0x3f) | 0x80);
  return uuid;
}

uint64_t DigestOf(const std::filesystem::path& path) {
  return ChecksumHeader(std::as_bytes(std::span(path.native())));
}

// Tells whether the error ends the whole start: another process has the directory, or has not ended
// yet, or this process lacks something that it needs for any directory.
bool ConcernsAll(const Error& error) {
  constexpr std::array<std::string_view, 5> kReasons = {"directory_locked", "last_io_under_way",
                                                        "EMFILE", "ENFILE", "ENOMEM"};
  return std::ranges::find(kReasons, error.reason) != kReasons.end();
}

// By device and inode, since two paths may lead to one directory.
Status CheckDistinct(const std::vector<std::filesystem::path>& directories) {
  std::map<std::pair<dev_t, ino_t>, std::filesystem::path> seen;
  for (const std::filesystem::path& directory : directories) {
    struct stat status {};
    if (::stat(directory.c_str(), &status) != 0) continue;
    const auto [other, fresh] = seen.try_emplace({status.st_dev, status.st_ino}, directory);
    if (fresh) continue;
    return MakeError(
        ErrorCode::kWrongState, "same_directory",
        fmt::format("{} and {} are one directory", other->second.native(), directory.native()));
  }
  return {};
}

}  // namespace

Result<DiskSet> DiskSet::Open(const std::vector<std::filesystem::path>& directories,
                              const DiskSetShape& shape, DriveUse use) {
  KVT_RETURN_IF_ERROR(CheckDistinct(directories));
  DiskSet set(shape);
  set.configured_ = static_cast<uint32_t>(directories.size());
  // One of several directories is not made: where a file system is not mounted, the blocks would go
  // to the one below.
  const bool alone = directories.size() == 1;
  const auto until = shape.locks_until.value_or(LastIoDeadline());
  for (const std::filesystem::path& directory : directories) {
    Result<DiskDrive> drive = DiskDrive::Open(directory, alone, use, until);
    if (drive) {
      if (std::optional<std::string> note = drive->TakeNote()) set.notes_.push_back(*note);
      set.drives_.push_back(*std::move(drive));
    } else if (alone || ConcernsAll(drive.error())) {
      return tl::unexpected<Error>(std::move(drive).error());
    } else {
      set.left_out_.push_back({directory, std::move(drive).error()});
    }
  }
  if (set.drives_.empty()) return tl::unexpected<Error>(set.left_out_.front().why);
  KVT_RETURN_IF_ERROR(set.ChooseSet());
  KVT_RETURN_IF_ERROR(set.CheckSlabs());
  return set;
}

Status DiskSet::LeaveOut(size_t drive, Error why) {
  if (drives_.size() == 1 || ConcernsAll(why)) return tl::unexpected<Error>(std::move(why));
  left_out_.push_back({drives_[drive].directory(), std::move(why)});
  drives_.erase(drives_.begin() + static_cast<ptrdiff_t>(drive));
  if (started_.empty()) return {};
  // It has its number, and is away for this start.
  const uint32_t number = started_[drive].number;
  started_.erase(started_.begin() + static_cast<ptrdiff_t>(drive));
  geometry_.drive_slabs[number] = 0;
  away_ |= uint32_t{1} << number;
  return {};
}

Status DiskSet::ForEachDrive(const std::function<Status(size_t drive)>& step) {
  for (size_t i = drives_.size(); i-- > 0;) {
    if (Status done = step(i); !done) KVT_RETURN_IF_ERROR(LeaveOut(i, std::move(done).error()));
  }
  return {};
}

// The set of the most drives, and of several such the one that was used last. Nothing is changed on
// the others.
Status DiskSet::ChooseSet() {
  // How many drives, and the highest epoch of them.
  std::map<Digest128, std::pair<uint32_t, uint64_t>> candidates;
  for (const DiskDrive& drive : drives_) {
    if (!drive.superblock()) continue;
    auto& [drives, epoch] = candidates[drive.superblock()->set_uuid];
    ++drives;
    epoch = std::max(epoch, drive.superblock()->epoch);
  }
  if (candidates.empty()) return {};
  const auto chosen = std::ranges::max_element(
      candidates, {}, [](const auto& candidate) { return candidate.second; });
  set_uuid_ = chosen->first;
  for (size_t i = drives_.size(); i-- > 0;) {
    const std::optional<Superblock>& own = drives_[i].superblock();
    if (!own || own->set_uuid == set_uuid_) continue;
    const std::string file = drives_[i].file().path().native();
    KVT_RETURN_IF_ERROR(LeaveOut(
        i, Error{ErrorCode::kWrongState, "foreign_drive",
                 fmt::format("{} is of set {}, other directories are of set {}; take it out of "
                             "disk.directories, or give up its blocks: truncate -s 0 {}",
                             file, own->set_uuid.Hex(), set_uuid_.Hex(), file)}));
  }
  LeaveOutCopies();
  return {};
}

// The drive that was used last counts, of two with one number: the other is a copy.
void DiskSet::LeaveOutCopies() {
  const auto epoch_of = [this](size_t i) { return drives_[i].superblock()->epoch; };
  std::map<uint32_t, size_t> by_number;
  std::set<size_t, std::greater<>> copies;
  for (size_t i = 0; i < drives_.size(); ++i) {
    if (!drives_[i].superblock()) continue;
    const auto [other, fresh] = by_number.try_emplace(drives_[i].superblock()->drive, i);
    if (fresh) continue;
    const bool newer = epoch_of(i) > epoch_of(other->second);
    copies.insert(newer ? std::exchange(other->second, i) : i);
  }
  for (const size_t copy : copies) {
    const uint32_t number = drives_[copy].superblock()->drive;
    const std::string file = drives_[copy].file().path().native();
    left_out_.push_back(
        {drives_[copy].directory(),
         Error{
             ErrorCode::kWrongState, "drive_copy",
             fmt::format("{} is a copy of drive {} in {}; take it out of disk.directories, or "
                         "give up its blocks: truncate -s 0 {}",
                         file, number, drives_[by_number.at(number)].directory().native(), file)}});
  }
  for (const size_t copy : copies) drives_.erase(drives_.begin() + static_cast<ptrdiff_t>(copy));
}

Status DiskSet::CheckSlabs() const {
  for (const DiskDrive& drive : drives_) {
    if (!drive.superblock() || drive.superblock()->slab_bytes == shape_.slab_bytes) continue;
    const std::string file = drive.file().path().native();
    return MakeError(
        ErrorCode::kWrongState, "slab_bytes_changed",
        fmt::format("{} was made with slab_bytes = {}, configured is {}; change it back, or give "
                    "up its blocks: truncate -s 0 {}",
                    file, drive.superblock()->slab_bytes, shape_.slab_bytes, file));
  }
  return {};
}

std::vector<std::filesystem::path> DiskSet::directories() const {
  std::vector<std::filesystem::path> found;
  uint64_t newest = 0;
  for (const DiskDrive& drive : drives_) {
    const uint64_t epoch = drive.superblock() ? drive.superblock()->epoch : 0;
    found.insert(epoch > newest ? found.begin() : found.end(), drive.directory());
    newest = std::max(newest, epoch);
  }
  return found;
}

Status DiskSet::EmptyIf(const std::function<std::optional<std::string>(const Superblock&)>& why) {
  std::set<std::string> told;
  return ForEachDrive([&](size_t i) -> Status {
    if (!drives_[i].superblock()) return {};
    std::optional<std::string> reason = why(*drives_[i].superblock());
    if (!reason) return {};
    KVT_RETURN_IF_ERROR(drives_[i].Empty());
    if (told.insert(*reason).second) notes_.push_back(*std::move(reason));
    return {};
  });
}

bool DiskSet::created() const {
  return std::ranges::all_of(started_,
                             [](const StartedDrive& drive) { return drive.found_epoch == 0; });
}

// Takes the latest that any drive knows of each. A drive that the last start had may have served
// until now: if this start lacks it, its time away begins now, just before that of the drives that
// are there, which the next start tells it by.
void DiskSet::ReadTable() {
  for (const DiskDrive& drive : drives_) {
    if (!drive.superblock()) continue;
    const Superblock& own = *drive.superblock();
    epoch_ = std::max(epoch_, own.epoch);
    for (uint32_t i = 0; i < kMaxDrives; ++i) {
      if (own.seen_s[i] <= seen_s_[i]) continue;
      seen_s_[i] = own.seen_s[i];
      paths_[i] = own.paths[i];
    }
  }
  const uint32_t last_start_s = *std::ranges::max_element(seen_s_);
  for (uint32_t& seen_s : seen_s_) {
    const bool in_last_start = seen_s != 0 && seen_s == last_start_s;
    if (in_last_start || seen_s > shape_.now_s) seen_s = std::max(shape_.now_s, uint32_t{2}) - 1;
    const bool long_ago = uint64_t{seen_s} + shape_.forget_after_s < shape_.now_s;
    if (long_ago) seen_s = 0;
  }
}

// A new drive takes the number of one that is away if it lies where that one did: it replaces it.
Status DiskSet::NumberDrives() {
  uint32_t taken = 0;
  for (const DiskDrive& drive : drives_) {
    if (drive.superblock()) taken |= uint32_t{1} << drive.superblock()->drive;
  }
  for (const DiskDrive& drive : drives_) {
    StartedDrive started{.directory = drive.directory()};
    if (drive.superblock()) {
      started.number = drive.superblock()->drive;
      started.found_epoch = drive.superblock()->epoch;
    } else {
      std::optional<uint32_t> number;
      for (uint32_t i = kMaxDrives; i-- > 0;) {
        if ((taken >> i & 1) != 0) continue;
        const bool replaces = seen_s_[i] != 0 && paths_[i] == DigestOf(drive.directory());
        if (replaces) number = i;
        if (replaces) break;
        if (seen_s_[i] == 0) number = i;
      }
      if (!number) {
        return MakeError(ErrorCode::kResourceExhausted, "too_many_drives",
                         fmt::format("{} would be a drive beyond the {} of the set",
                                     drive.directory().native(), kMaxDrives));
      }
      started.number = *number;
      taken |= uint32_t{1} << *number;
    }
    started_.push_back(std::move(started));
  }
  return {};
}

uint64_t DiskSet::SlabsOfEach() const {
  return SlabsOfEachDirectory(shape_.bytes, configured_, shape_.slab_bytes);
}

// Files on one file system share its free space; space that the files have taken already counts as
// available, since a start sizes them anew. The floor is left free on each file system. A drive has
// an equal share of the cap, also while others are away: else it would lose it when they are back.
Result<std::vector<uint64_t>> DiskSet::SlabsThatFit() const {
  struct FileSystem {
    uint64_t room_bytes = 0;
    uint32_t files = 0;
  };
  std::map<uint64_t, FileSystem> file_systems;
  std::vector<uint64_t> device_of;
  for (const DiskDrive& drive : drives_) {
    KVT_ASSIGN_OR_RETURN(const DiskSetFile::Namespace name_space, drive.file().GetNamespace());
    FileSystem& file_system = file_systems[name_space.device];
    if (file_system.files == 0) file_system.room_bytes = name_space.file_system_free_bytes;
    file_system.room_bytes += name_space.allocated_bytes;
    file_system.files += 1;
    device_of.push_back(name_space.device);
  }
  std::vector<uint64_t> fit;
  for (const uint64_t device : device_of) {
    const FileSystem& file_system = file_systems[device];
    const uint64_t room =
        file_system.room_bytes - std::min(file_system.room_bytes, shape_.free_floor_bytes);
    const uint64_t share = room / file_system.files;
    const uint64_t slabs =
        share > kFirstSlabOffset ? (share - kFirstSlabOffset) / shape_.slab_bytes : 0;
    fit.push_back(std::min(slabs, SlabsOfEach()));
  }
  return fit;
}

Status DiskSet::Preallocate() {
  geometry_.slab_bytes = shape_.slab_bytes;
  KVT_RETURN_IF_ERROR(ForEachDrive([&](size_t i) { return drives_[i].Create(); }));
  KVT_ASSIGN_OR_RETURN(const std::vector<uint64_t> wanted, SlabsThatFit());
  return ForEachDrive([&](size_t i) -> Status {
    Status got = drives_[i].Preallocate(wanted[i], shape_.slab_bytes);
    if (!got) {
      Error why = std::move(got).error();
      if (why.code == ErrorCode::kResourceExhausted) {
        why.context +=
            fmt::format(" of {} above the free-space floor of {}",
                        FormatByteSize(shape_.slab_bytes), FormatByteSize(shape_.free_floor_bytes));
      }
      return tl::unexpected<Error>(std::move(why));
    }
    if (std::optional<std::string> note = drives_[i].TakeNote()) notes_.push_back(*note);
    return {};
  });
}

Status DiskSet::SizeAndBegin() {
  KVT_RETURN_IF_ERROR(Preallocate());
  ReadTable();
  const bool anew = std::ranges::none_of(
      drives_, [](const DiskDrive& drive) { return drive.superblock().has_value(); });
  if (anew) {
    KVT_ASSIGN_OR_RETURN(set_uuid_, RandomUuid());
  }
  KVT_RETURN_IF_ERROR(NumberDrives());
  return Begin();
}

Status DiskSet::Begin() {
  epoch_ += 1;
  for (size_t i = 0; i < drives_.size(); ++i) {
    const uint32_t number = started_[i].number;
    started_[i].wanted_slabs = SlabsOfEach();
    geometry_.drive_slabs[number] = drives_[i].slabs();
    seen_s_[number] = std::max(shape_.now_s, uint32_t{1});
    paths_[number] = DigestOf(started_[i].directory);
  }
  for (uint32_t i = 0; i < kMaxDrives; ++i) {
    if (seen_s_[i] != 0 && geometry_.drive_slabs[i] == 0) away_ |= uint32_t{1} << i;
  }
  NoteSizes();
  KVT_RETURN_IF_ERROR(ForEachDrive([&](size_t i) {
    const uint64_t slabs = geometry_.drive_slabs[started_[i].number];
    return drives_[i].Begin({.set_uuid = set_uuid_,
                             .drive = started_[i].number,
                             .slab_bytes = shape_.slab_bytes,
                             .file_bytes = kFirstSlabOffset + slabs * shape_.slab_bytes,
                             .epoch = epoch_,
                             .encrypted = shape_.encrypted,
                             .seen_s = seen_s_,
                             .paths = paths_});
  }));
  // Files are numbered in the order of drives.
  std::vector<size_t> order(drives_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [this](size_t i) { return started_[i].number; });
  std::vector<DiskDrive> drives;
  std::vector<StartedDrive> started;
  for (const size_t i : order) {
    drives.push_back(std::move(drives_[i]));
    started.push_back(std::move(started_[i]));
  }
  drives_ = std::move(drives);
  started_ = std::move(started);
  return {};
}

bool DiskSet::degraded() const {
  return !left_out_.empty() || away_ != 0 ||
         std::ranges::any_of(started_, [this](const StartedDrive& drive) {
           return geometry_.drive_slabs[drive.number] < drive.wanted_slabs;
         });
}

void DiskSet::NoteSizes() {
  for (size_t i = 0; i < drives_.size(); ++i) {
    const std::string& directory = started_[i].directory.native();
    const uint64_t slabs = geometry_.drive_slabs[started_[i].number];
    if (slabs < started_[i].wanted_slabs) {
      notes_.push_back(
          fmt::format("{} has room for {} of the {} configured for it (free-space floor {})",
                      directory, FormatByteSize(slabs * shape_.slab_bytes),
                      FormatByteSize(started_[i].wanted_slabs * shape_.slab_bytes),
                      FormatByteSize(shape_.free_floor_bytes)));
    }
    const std::optional<Superblock>& before = drives_[i].superblock();
    const uint64_t bytes = kFirstSlabOffset + slabs * shape_.slab_bytes;
    if (before && before->file_bytes != bytes) {
      notes_.push_back(fmt::format("{}: resized from {} to {}", directory,
                                   FormatByteSize(before->file_bytes - kFirstSlabOffset),
                                   FormatByteSize(bytes - kFirstSlabOffset)));
    }
    if (!drives_[i].file().direct()) {
      notes_.push_back(
          fmt::format("{}: this file system has no direct I/O; blocks go through the "
                      "page cache",
                      directory));
    }
  }
}

}  // namespace kvtier
