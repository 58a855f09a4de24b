// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/disk_tier.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/units.h"
#include "daemon/resources/root_key.h"
#include "daemon/runtime/process.h"
#include "tiers/index/process_lack.h"
#include "tiers/storage/disk_set_file.h"
#include "tiers/storage/key_file.h"

namespace kvtier {
namespace {

// How often the log and systemd hear of a rebuild's progress.
constexpr int64_t kRebuildReportMs = 1000;
// The start-up time-out that systemd is asked for between two progress reports, and after the last
// one. A rebuild of many terabytes takes minutes, and reports keep putting the time-out off. The
// locks of a process that has ended are waited for for a minute and a half.
constexpr int64_t kStartPatienceMs = 120 * 1000;
// How often a rebuilt index that could not be written is asked whether it can be by now.
constexpr int64_t kWriteIndexEveryMs = 5000;

Status RemoveKeyFiles(const std::vector<std::filesystem::path>& directories) {
  for (const auto& directory : directories) KVT_RETURN_IF_ERROR(KeyFile::Remove(directory));
  return {};
}

// One file is enough: a drive that fails does not keep others from being written to. Its own goes,
// for a start without the others would take it. Whether it did is the result.
Result<bool> SaveKeys(const std::vector<std::shared_ptr<KeyFile>>& files,
                      const KeyRing::Contents& keys, Log* log) {
  const auto done = [log](const Status& status) {
    if (!status) log->Warning("disk.keys_not_stored", "{}", status.error().ToString());
    return status.has_value();
  };
  Status last;
  std::vector<KeyFile*> unsaved;
  for (const auto& file : files) {
    Status now = file->Save(keys);
    if (done(now)) continue;
    unsaved.push_back(file.get());
    last = std::move(now);
  }
  if (unsaved.size() == files.size()) return tl::unexpected(std::move(last).error());
  bool gone = true;
  for (KeyFile* const file : unsaved) gone &= done(file->RemoveOlder(keys.version));
  return gone;
}

// The newest that can be read; of equal ones that of the drive that the last start had.
Result<KeyRing::Contents> LoadKeys(const std::vector<std::shared_ptr<KeyFile>>& files,
                                   const std::optional<RootKey>& previous, Log* log) {
  KeyRing::Contents newest;
  Status first;
  for (const auto& file : files) {
    Result<KeyRing::Contents> found = file->Load(previous);
    if (!found) {
      log->Warning("disk.note", "a file of keys was not read: {}", found.error().ToString());
      if (first) first = tl::unexpected(found.error());
    } else if (found->version > newest.version ||
               (found->version == newest.version && newest.keys.empty())) {
      newest = *std::move(found);
    }
  }
  const bool none = newest.version == 0 && newest.keys.empty();
  if (none && !first) return tl::unexpected(std::move(first).error());
  return newest;
}

// A drive that was away for longer holds nothing that has not expired.
int64_t LongestTtlMs(const CacheOptions& options) {
  int64_t longest_ms = options.extended_ttl_ms;
  for (const TenantQuota& tenant : options.tenants) {
    longest_ms = std::max(longest_ms, tenant.extended_ttl_ms);
  }
  return longest_ms;
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::Open(const Config& config, const Clock& clock,
                                                 EventLoop* loop, Executor* executor, Log* log,
                                                 ServiceManager* manager,
                                                 const TakeKeys& take_keys) {
  std::unique_ptr<DiskTier> tier(new DiskTier(clock, log, manager));
  if (config.disk.bytes == 0) {
    log->Info("disk.off", "no disk tier is configured (disk.bytes)");
    return tier;
  }
  KVT_RETURN_IF_ERROR(tier->OpenFiles(config, loop, executor, take_keys));
  KVT_RETURN_IF_ERROR(tier->OpenIndex(config, loop));
  return tier;
}

std::unique_ptr<DiskTier> DiskTier::Unavailable(const Config& config, const Clock& clock,
                                                const Error& why, Log* log,
                                                ServiceManager* manager) {
  std::unique_ptr<DiskTier> tier(new DiskTier(clock, log, manager));
  tier->facts_.directory = config.disk.Places().front();
  tier->facts_.degraded = true;
  tier->facts_.notes.push_back("the disk tier could not be had: " + why.ToString());
  log->Warning("disk.unavailable", "{}; pools and host memory serve without the disk tier",
               why.ToString());
  return tier;
}

bool MayServeWithoutDisk(const Error& error) {
  switch (error.code) {
    case ErrorCode::kIoError:
      return error.reason != "last_io_under_way" && !IsLackOfProcess(error);
    case ErrorCode::kResourceExhausted:
      return error.reason == "disk_full";
    case ErrorCode::kPermissionDenied:
      return error.reason == "directory_owner" || error.reason == "file_owner" ||
             error.reason == "index_permission";
    default:
      return false;
  }
}

void DiskTier::Note(const std::string& note) {
  log_->Warning("disk.note", "{}", note);
  facts_.notes.push_back(note);
}

// Keys destroyed in memory must not come back from the file: memory that an earlier daemon left is
// newer, or as new.
Status DiskTier::OpenKeyFile(const DiskConfig& disk,
                             const std::vector<std::filesystem::path>& directories, EventLoop* loop,
                             KeyRing* keys) {
  if (disk.root_key.empty()) return RemoveKeyFiles(directories);
  KVT_ASSIGN_OR_RETURN(const RootKeys root_keys, LoadRootKeys(disk));
  std::vector<std::shared_ptr<KeyFile>> files;
  for (const std::filesystem::path& directory : directories) {
    KVT_ASSIGN_OR_RETURN(AesAlgorithms aes, AesAlgorithms::Fetch());
    files.push_back(
        std::make_shared<KeyFile>(directory, RootKey(root_keys.root.bytes()), std::move(aes)));
  }
  Result<KeyRing::Contents> stored = LoadKeys(files, root_keys.previous, log_);
  if (!stored && !keys->adopted()) return tl::unexpected<Error>(std::move(stored).error());
  KeyRing::Contents known = stored ? *std::move(stored) : KeyRing::Contents();
  if (keys->adopted()) known.keys.clear();
  // Later than those of drives that are away.
  known.version = std::max(known.version, static_cast<uint64_t>(clock_.WallMs()));
  keys->Load(known);
  // Under the root key of now, and under nonces of their own.
  KVT_RETURN_IF_ERROR(SaveKeys(files, keys->Copy(), log_));
  key_thread_ = std::make_unique<ThreadExecutor>("kvt-keys", 1, loop);
  keys->KeepStored(
      [files, log = log_](const KeyRing::Contents& now) { return SaveKeys(files, now, log); },
      key_thread_.get());
  return {};
}

Result<bool> DiskTier::OpenKeys(const DiskConfig& disk,
                                const std::vector<std::filesystem::path>& directories,
                                EventLoop* loop, const TakeKeys& take_keys) {
  ForbidCoreDumps();
  std::unique_ptr<KeyRing> keys;
  if (std::optional<UniqueFd> kept = take_keys()) {
    Result<std::unique_ptr<KeyRing>> adopted = KeyRing::Adopt(*std::move(kept));
    if (adopted) {
      keys = *std::move(adopted);
    } else if (adopted.error().code == ErrorCode::kCorrupt) {
      Note("the kept encryption keys cannot be used: " + adopted.error().ToString());
    } else {
      return tl::unexpected<Error>(std::move(adopted).error());
    }
  }
  if (keys == nullptr) {
    KVT_ASSIGN_OR_RETURN(keys, KeyRing::Create());
  }
  const bool adopted = keys->adopted();
  KVT_RETURN_IF_ERROR(OpenKeyFile(disk, directories, loop, keys.get()));
  const bool has_keys = adopted || keys->size() > 0;
  log_->Info("disk.keys", "blocks are encrypted, {} keys{}{}", keys->size(),
             has_keys ? " of an earlier daemon" : "",
             keys->rejected() > 0 ? fmt::format(", {} damaged", keys->rejected()) : "");
  KVT_ASSIGN_OR_RETURN(cipher_, SlotCipher::Create(std::move(keys)));
  return has_keys;
}

// The lock is taken first of all, within OpenDiskFiles: nothing is read or written without it.
Status DiskTier::OpenFiles(const Config& config, EventLoop* loop, Executor* executor,
                           const TakeKeys& take_keys) {
  const DiskConfig& disk = config.disk;
  free_floor_bytes_ = disk.free_floor_bytes;
  std::function<Result<bool>(const std::vector<std::filesystem::path>&)> has_keys;
  if (disk.encryption != DiskEncryption::kNone) {
    has_keys = [&](const std::vector<std::filesystem::path>& directories) {
      return OpenKeys(disk, directories, loop, take_keys);
    };
  }
  manager_->Extend("Opening the disk tier", kStartPatienceMs);
  readers_ = std::make_unique<ThreadExecutor>("kvt-read", executor->threads(), loop);
  KVT_ASSIGN_OR_RETURN(
      files_, OpenDiskFiles({.directories = disk.Places(),
                             .bytes = disk.bytes,
                             .slab_bytes = config.cache.slab_bytes,
                             .free_floor_bytes = disk.free_floor_bytes,
                             .now_ms = clock_.WallMs(),
                             .forget_after_ms = LongestTtlMs(config.cache),
                             .has_keys = std::move(has_keys),
                             .engine = disk.engine,
                             .io = {.executor = readers_.get(),
                                    .log = [this](const std::string& note) { Note(note); }}},
                            loop));
  // The key file of a tier that was encrypted before.
  if (disk.encryption == DiskEncryption::kNone) {
    std::vector<std::filesystem::path> directories;
    for (const StartedDrive& drive : files_.drives) directories.push_back(drive.directory);
    KVT_RETURN_IF_ERROR(RemoveKeyFiles(directories));
  }
  for (const StartedDrive& drive : files_.drives) {
    drive_threads_[drive.number] =
        std::make_unique<ThreadExecutor>(fmt::format("kvt-disk{}", drive.number), 1, loop);
  }
  facts_.enabled = true;
  facts_.degraded = files_.degraded;
  if (cipher_) {
    for (const auto& file : files_.files) {
      encrypted_files_.push_back(std::make_unique<EncryptedFile>(file.get(), cipher_, executor));
    }
  }
  for (const std::string& note : files_.notes) Note(note);
  NoteDrives(config);
  log_->Info("disk.open", "{} in {} file(s), engine {}{}", FormatByteSize(files_.geometry.bytes()),
             files_.files.size(), files_.files.front()->engine(),
             files_.created ? ", made new" : "");
  if (files_.degraded) {
    log_->Warning("disk.degraded", "{} of the {} configured could be had",
                  FormatByteSize(files_.geometry.bytes()), FormatByteSize(disk.bytes));
  }
  return {};
}

void DiskTier::NoteDrives(const Config& config) {
  for (const StartedDrive& drive : files_.drives) {
    facts_.drives.push_back({drive.directory.native(), drive.number, {}});
    log_->Info("disk.drive", "{}: drive {}, {}{}", drive.directory.native(), drive.number,
               FormatByteSize(files_.geometry.drive_slabs[drive.number] * config.cache.slab_bytes),
               drive.found_epoch == 0 ? ", made new" : "");
  }
  for (const LeftOutDrive& drive : files_.left_out) {
    const std::string why = drive.why.ToString();
    facts_.drives.push_back({drive.directory.native(), std::nullopt, why});
    log_->Warning("disk.drive_left_out", "{}: {}; its blocks are misses until a start that has it",
                  drive.directory.native(), why);
  }
  facts_.drives_away = static_cast<uint64_t>(std::popcount(files_.drives_away));
  if (facts_.drives_away > 0) {
    log_->Warning("disk.drives_away",
                  "{} drive(s) of the tier are not there; their blocks are misses until a start "
                  "that has them",
                  facts_.drives_away);
  }
}

// The index is a copy of the slots' headers. If it is missing, damaged or of other files, it is
// rebuilt from them, so that losing it costs time, not blocks.
Status DiskTier::OpenIndex(const Config& config, EventLoop* loop) {
  const int64_t begun_ms = clock_.MonotonicMs();
  int64_t reported_ms = begun_ms;
  const auto report = [&](const ScanProgress& progress) {
    if (clock_.MonotonicMs() - reported_ms < kRebuildReportMs) return;
    reported_ms = clock_.MonotonicMs();
    const std::string done = fmt::format("{} of {} slabs, {} slots", progress.slabs_done,
                                         progress.slabs, progress.slots_done);
    log_->Info("index.rebuilding", "{}", done);
    manager_->Extend("Rebuilding the index: " + done, kStartPatienceMs);
  };
  KVT_ASSIGN_OR_RETURN(index_, StartIndex(config.disk.Places(), files_,
                                          {.now_ms = clock_.WallMs(),
                                           .extended_ttl_ms = config.cache.extended_ttl_ms,
                                           .max_age_ms = config.cache.max_age_ms,
                                           .tenants = config.cache.tenants,
                                           .cipher = cipher_},
                                          loop, report));
  facts_.directory = index_.directory.native();
  // New files have no index and need none rebuilt.
  facts_.index_found = files_.created ? "new" : IndexStateName(index_.found);
  facts_.index_rebuilt = index_.rebuilt.has_value() && !files_.created;
  facts_.index_seconds = static_cast<double>(clock_.MonotonicMs() - begun_ms) / 1000;
  if (facts_.index_rebuilt) {
    LogRebuild(*index_.rebuilt);
  } else {
    log_->Info("index.loaded", "{} blocks in {:.3f} s", index_.snapshot.records.size(),
               facts_.index_seconds);
  }
  if (index_.damaged_marks > 0) {
    Note(
        fmt::format("{} lines of the drives' files `erasures` and `distrusted` are damaged: an "
                    "erasure that had not ended may be forgotten, and is to be repeated",
                    index_.damaged_marks));
  }
  if (index_.unwritten) {
    facts_.degraded = true;
    Note("the rebuilt index could not be written at the start, and no block could be: " +
         index_.unwritten->ToString());
    write_index_at_ms_ = clock_.MonotonicMs() + kWriteIndexEveryMs;
  }
  const auto cut_off = std::ranges::count_if(index_.snapshot.records, [this](const auto& record) {
    const uint32_t drive = files_.geometry.DriveOf(record.location);
    return !files_.geometry.Contains(record.location) && (files_.drives_away >> drive & 1) == 0;
  });
  if (cut_off > 0) {
    Note(fmt::format("{} blocks lay beyond the end of the tier, which is smaller now, and are lost",
                     cut_off));
  }
  return {};
}

void DiskTier::LogRebuild(const RebuiltIndex& rebuilt) const {
  std::string rejected;
  for (int i = 0; i < kRebuildRejectCount; ++i) {
    if (rebuilt.rejected[i] == 0) continue;
    rejected += fmt::format(", {} {}", rebuilt.rejected[i],
                            RebuildRejectName(static_cast<RebuildReject>(i)));
  }
  log_->Info("index.rebuilt",
             "the index was {}{}{}; {} blocks were found in the headers of {} slabs in {:.3f} s{}",
             facts_.index_found, index_.found_detail.empty() ? "" : ": ", index_.found_detail,
             index_.snapshot.records.size(), rebuilt.slabs, facts_.index_seconds, rejected);
}

void DiskTier::Tick() {
  for (const auto& watch : watches_) watch->Tick();
  if (!index_.unwritten || clock_.MonotonicMs() < write_index_at_ms_) return;
  write_index_at_ms_ = INT64_MAX;
  // The index writes all that it holds before an empty batch, too.
  index_.index->Apply({}, gate_.WhileOpen([this](const Status& written) {
    write_index_at_ms_ = clock_.MonotonicMs() + kWriteIndexEveryMs;
    if (!written) return;
    index_.unwritten.reset();
    facts_.degraded = files_.degraded || gone_;
    log_->Info("index.written", "the rebuilt index is on disk");
  }));
}

void DiskTier::FindGone(std::function<void(std::optional<std::filesystem::path>)> done) {
  FindGoneFrom(0, std::move(done));
}

// One drive after the other: which one is gone is told by its own watch.
void DiskTier::FindGoneFrom(size_t watch,
                            std::function<void(std::optional<std::filesystem::path>)> done) {
  if (watch == watches_.size()) return done(std::nullopt);
  watches_[watch]->Look(
      [this, watch, done = std::move(done)](const std::optional<std::filesystem::path>& gone) {
        gone ? done(gone) : FindGoneFrom(watch + 1, done);
      });
}

DriveSlabs DiskTier::SlabsFor(uint64_t bytes) const {
  DriveSlabs slabs{};
  const uint64_t directories = files_.drives.size() + files_.left_out.size();
  for (const StartedDrive& drive : files_.drives) {
    slabs[drive.number] = SlabsOfEachDirectory(bytes, directories, files_.geometry.slab_bytes);
  }
  return slabs;
}

struct DiskTier::Resizing {
  DriveSlabs wanted{};
  std::function<void(const DriveSlabs&)> done;
  size_t drives = 0;  // that have been resized
  DriveSlabs got{};
  std::string refused;
};

void DiskTier::Resize(const DriveSlabs& wanted, std::function<void(const DriveSlabs&)> done) {
  ResizeNext(std::make_shared<Resizing>(Resizing{.wanted = wanted, .done = std::move(done)}));
}

// One after the other, because the free-space floor may be of one file system. The drive belongs to
// its thread meanwhile, also if the tier ends.
void DiskTier::ResizeNext(const std::shared_ptr<Resizing>& resizing) {
  if (resizing->drives == files_.opened->size()) {
    NoteSizes(resizing->wanted, resizing->got, resizing->refused);
    return resizing->done(resizing->got);
  }
  DiskDrive& drive = files_.opened->at(resizing->drives++);
  const uint32_t number = drive.superblock()->drive;
  const auto resized = std::make_shared<Status>();
  drive_threads_.at(number)->Run(
      [&drive, drives = files_.opened, slabs = resizing->wanted[number], floor = free_floor_bytes_,
       resized] { *resized = drive.Resize(slabs, floor); },
      gate_.WhileOpen([this, &drive, number, resizing, resized] {
        resizing->got[number] = drive.slabs();
        if (!*resized) resizing->refused += "; " + resized->error().ToString();
        ResizeNext(resizing);
      }));
}

void DiskTier::NoteSizes(const DriveSlabs& wanted, const DriveSlabs& got,
                         const std::string& refused) {
  uint64_t slabs = 0;
  uint64_t missing = 0;
  for (uint32_t drive = 0; drive < kMaxDrives; ++drive) {
    slabs += got[drive];
    missing += wanted[drive] - std::min(wanted[drive], got[drive]);
  }
  const uint64_t slab_bytes = files_.geometry.slab_bytes;
  files_.degraded = missing > 0 || !files_.left_out.empty() || files_.drives_away != 0;
  facts_.degraded = files_.degraded || gone_ || index_.unwritten.has_value();
  log_->Info("disk.resized", "{} in {} file(s)", FormatByteSize(slabs * slab_bytes),
             files_.files.size());
  if (missing == 0 && refused.empty()) return;
  log_->Warning("disk.degraded", "{} of the {} configured could be had{}",
                FormatByteSize(slabs * slab_bytes), FormatByteSize((slabs + missing) * slab_bytes),
                refused);
}

std::vector<std::string> DiskTier::FileNames() const {
  std::vector<std::string> names;
  for (const StartedDrive& drive : files_.drives) {
    names.push_back((drive.directory / kDiskFileName).native());
  }
  return names;
}

bool DiskTier::idle() const {
  return (key_thread_ == nullptr || !key_thread_->busy()) &&
         std::ranges::none_of(drive_threads_, [](const auto& each) { return each.second->busy(); });
}

void DiskTier::Watch(const LoseDrive& lose_drive) {
  for (const StartedDrive& drive : files_.drives) {
    std::vector<std::filesystem::path> paths = {drive.directory, drive.directory / kDiskFileName};
    if (drive.directory == index_.directory) paths.push_back(drive.directory / "index");
    watches_.push_back(
        std::make_unique<DiskWatch>(std::move(paths), &clock_, drive_threads_[drive.number].get(),
                                    [this, drive, lose_drive](const std::filesystem::path& gone) {
                                      OnGone(drive, gone, lose_drive);
                                    }));
  }
}

// Without an index nothing can be written to any drive: what a start would find there is unknown.
void DiskTier::OnGone(const StartedDrive& drive, const std::filesystem::path& gone,
                      const LoseDrive& lose_drive) {
  const std::string text = fmt::format("{} was deleted or replaced", gone.native());
  const auto of_drive = [&](const DriveFacts& facts) { return facts.number == drive.number; };
  std::ranges::find_if(facts_.drives, of_drive)->why = text;
  if (lose_drive(drive.number, text, drive.directory == index_.directory)) return;
  gone_ = true;
  facts_.degraded = true;
  const std::string end = fmt::format(
      "{}: no block is written to disk any more, and those that are there end with this process",
      text);
  log_->Error("disk.gone", "{}", end);
  facts_.notes.push_back(end);
}

IndexSnapshot DiskTier::Join(CacheEnvironment* environment) {
  // Without a disk tier the environment stays as it is, and the cache has two tiers.
  if (!facts_.enabled) return {};
  if (cipher_) {
    for (const auto& file : encrypted_files_) environment->files.push_back(file.get());
    environment->keys = &cipher_->keys();
  } else {
    for (const auto& file : files_.files) environment->files.push_back(file.get());
  }
  environment->geometry = files_.geometry;
  environment->drive_sizer = this;
  environment->drives_away = files_.drives_away;
  environment->disk_set = files_.set_uuid;
  environment->disk_epoch = files_.epoch;
  environment->index = index_.index.get();
  return std::move(index_.snapshot);
}

}  // namespace kvtier
