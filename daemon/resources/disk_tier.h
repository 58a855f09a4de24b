// SPDX-License-Identifier: Apache-2.0
// The disk tier as the daemon starts it: lock, files, engine and index.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/gate.h"
#include "base/posix.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/resources/disk_watch.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/supervision.h"
#include "tiers/cache.h"
#include "tiers/index/index_start.h"
#include "tiers/storage/disk_files.h"
#include "tiers/storage/encrypted_file.h"
#include "tiers/storage/slot_cipher.h"

namespace kvtier {

// A directory of the disk tier.
struct DriveFacts {
  std::string directory;
  std::optional<uint32_t> number;  // none: it was left out
  std::string why;                 // it was left out, or has been given up since; empty: it serves
};

// How the disk tier came up.
struct DiskStartFacts {
  bool enabled = false;
  std::string directory;           // that has the index
  std::vector<DriveFacts> drives;  // those that serve first, by their numbers
  uint64_t drives_away = 0;        // drives of the set that are not there
  // Smaller than configured, not to be had, deleted meanwhile, or without an index that is written.
  bool degraded = false;
  std::vector<std::string> notes;  // for people
  std::string index_found;         // "good", "new", or why the index was rebuilt
  bool index_rebuilt = false;
  double index_seconds = 0;  // it took to load or rebuild it
};

// Made once, before the loop runs, and kept until the end: it owns the directory's lock, the files
// with their I/O threads, and the index. The cache borrows files and index and must go first. The
// cache's calls use them on the event loop; after Join, only what stands below it is called.
class DiskTier final : public DriveSizer {
 public:
  using TakeKeys = std::function<std::optional<UniqueFd>()>;

  // Does nothing if the configuration has no disk tier. Blocks; `manager` hears of long work.
  // `executor` encrypts slots that are written. Slots that are read are checked by as many threads
  // of the tier's own, which have the loop's priority because clients wait for them. A file
  // system may hang: each drive has a thread for what asks it, and the keys have one. All arguments
  // are borrowed. `take_keys` is called, if blocks are encrypted, once the directory is locked, for
  // the keys that an earlier daemon left, if any. Errors: those of OpenDiskFiles, StartIndex,
  // KeyRing and SlotCipher.
  [[nodiscard]] static Result<std::unique_ptr<DiskTier>> Open(const Config& config,
                                                              const Clock& clock, EventLoop* loop,
                                                              Executor* executor, Log* log,
                                                              ServiceManager* manager,
                                                              const TakeKeys& take_keys);

  // A tier that could not be had, for one of the errors of MayServeWithoutDisk: the daemon serves
  // from its other tiers, degraded. The log says so.
  [[nodiscard]] static std::unique_ptr<DiskTier> Unavailable(const Config& config,
                                                             const Clock& clock, const Error& why,
                                                             Log* log, ServiceManager* manager);

  // Fills in files, geometry and index; returns what they hold, once.
  [[nodiscard]] IndexSnapshot Join(CacheEnvironment* environment);
  // From now on Tick looks whether directories and files are still there. When a drive's are not,
  // later writes there end with the process: `lose_drive` hears of it, see Cache::LoseDrive.
  using LoseDrive = std::function<bool(uint32_t drive, const std::string& why, bool with_index)>;
  void Watch(const LoseDrive& lose_drive);
  // The slabs that each drive is to have under a cap of so many bytes.
  [[nodiscard]] DriveSlabs SlabsFor(uint64_t bytes) const;
  // See DriveSizer; the log says what came of it.
  void Resize(const DriveSlabs& wanted, std::function<void(const DriveSlabs&)> done) override;
  // The names of the files, as incidents number them.
  [[nodiscard]] std::vector<std::string> FileNames() const;
  // Looks now: `done` gets the first path that is not there any more, if any.
  void FindGone(std::function<void(std::optional<std::filesystem::path>)> done);
  // Also has an index written for which there was no room at the start.
  void Tick();
  [[nodiscard]] const DiskStartFacts& facts() const { return facts_; }
  // Directories that this start goes without.
  [[nodiscard]] const std::vector<LeftOutDrive>& left_out() const { return files_.left_out; }
  // No file system is asked: the tier may be destroyed without waiting for one.
  [[nodiscard]] bool idle() const;
  // A process that holds it can read the blocks on disk; -1 if nothing is encrypted.
  [[nodiscard]] int keys_descriptor() const { return cipher_ ? cipher_->keys().descriptor() : -1; }

 private:
  DiskTier(const Clock& clock, Log* log, ServiceManager* manager)
      : clock_(clock), log_(log), manager_(manager) {}
  [[nodiscard]] Status OpenFiles(const Config& config, EventLoop* loop, Executor* executor,
                                 const TakeKeys& take_keys);
  // False if the keys are new.
  [[nodiscard]] Result<bool> OpenKeys(const DiskConfig& disk,
                                      const std::vector<std::filesystem::path>& directories,
                                      EventLoop* loop, const TakeKeys& take_keys);
  // Adds the keys of the first directory's file to `keys`, unless the memory of an earlier daemon
  // has them all; from then on the file in each holds what `keys` does.
  [[nodiscard]] Status OpenKeyFile(const DiskConfig& disk,
                                   const std::vector<std::filesystem::path>& directories,
                                   EventLoop* loop, KeyRing* keys);
  [[nodiscard]] Status OpenIndex(const Config& config, EventLoop* loop);
  // For people: into the log and into the status, since the log may be gone when an operator asks.
  void Note(const std::string& note);
  void NoteDrives(const Config& config);
  void OnGone(const StartedDrive& drive, const std::filesystem::path& gone,
              const LoseDrive& lose_drive);
  void FindGoneFrom(size_t watch, std::function<void(std::optional<std::filesystem::path>)> done);
  struct Resizing;
  void ResizeNext(const std::shared_ptr<Resizing>& resizing);
  void NoteSizes(const DriveSlabs& wanted, const DriveSlabs& got, const std::string& refused);
  void LogRebuild(const RebuiltIndex& rebuilt) const;

  const Clock& clock_;
  Log* const log_;
  ServiceManager* const manager_;
  uint64_t free_floor_bytes_ = 0;
  DiskStartFacts facts_;
  // They outlive the files, whose reads the first check.
  std::unique_ptr<Executor> readers_;
  std::map<uint32_t, std::unique_ptr<ThreadExecutor>> drive_threads_;  // by the drive's number
  std::unique_ptr<ThreadExecutor> key_thread_;  // null: keys are stored in no file
  // The lock within goes last, after the index is closed.
  DiskFiles files_;
  std::shared_ptr<SlotCipher> cipher_;                           // null: nothing is encrypted
  std::vector<std::unique_ptr<EncryptedFile>> encrypted_files_;  // over those of `files_`
  StartedIndex index_;
  std::vector<std::unique_ptr<DiskWatch>> watches_;  // by file
  bool gone_ = false;
  int64_t write_index_at_ms_ = 0;  // if it is not written
  Gate gate_;
};

// Whether the disk may be there again in a while and pools and host memory can serve without it.
// Not so while another process has the directory, or has not ended: it may have the sockets, too.
[[nodiscard]] bool MayServeWithoutDisk(const Error& error);

}  // namespace kvtier
