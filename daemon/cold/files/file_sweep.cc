// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/file_sweep.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/posix.h"
#include "daemon/cold/files/object_files.h"
#include "tiers/cold/cold_object.h"

namespace kvtier {
namespace {

// Files are told apart by their ends to so many seconds, so that a sweep's memory is bounded.
constexpr int64_t kPeriodS = 600;
// No object lives longer; a foreign file might.
constexpr int64_t kMaxLifeS = int64_t{367} * 24 * 3600;

constexpr const char* kTop = "kvtier";
constexpr const char* kStamp = ".swept";
constexpr const char* kStampPath = "kvtier/.swept";
constexpr const char* kClock = ".clock";
constexpr const char* kClockPath = "kvtier/.clock";
// Hosts whose clocks agree with the file system's to less agree with each other about ends.
constexpr int64_t kMaxDifferenceS = 60;
// Beside the answers of the system.
constexpr int kClocksDiffer = -ETIME;
constexpr std::string_view kCannotSweep = "this host cannot sweep";
constexpr std::string_view kHasEnded = "a sweep has ended";
constexpr std::string_view kLeavesOut = "a sweep leaves out";

bool IsTemporary(std::string_view name) { return name.starts_with(kTemporaryPrefix); }

std::string PathOf(int directory, const char* name) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(directory), error) / name;
}

}  // namespace

std::optional<std::string> FileSweep::Look() {
  failure_.clear();
  has_others_ = false;
  const bool begun = Begin();
  if (begun) Run();
  if (!begun && failure_.empty()) return std::nullopt;
  if (std::exchange(told_, failure_) == failure_ || failure_.empty()) return std::nullopt;
  return has_others_ ? failure_ + ", and others" : failure_;
}

// Opened before it is looked at, so that a network file system asks its server, which knows what
// other hosts have set.
int FileSweep::ReadStamp(int directory, int64_t* time_s) {
  const UniqueFd stamp(files_.Open(directory, kStamp, O_WRONLY | O_CREAT));
  if (!stamp.valid()) return stamp.get();
  struct stat found {};
  const int told = files_.Stat(stamp.get(), "", &found);
  *time_s = found.st_mtime;
  return told;
}

// One host with a wrong clock would take all files for past their ends, also those of others.
int FileSweep::AskTime(int directory, int64_t* now_s) {
  struct stat found {};
  // Where clients set the time themselves, as Lustre's do, another host has left its own.
  int answer = files_.Stat(directory, kClock, &found);
  if (answer >= 0 && found.st_mtime - now_() >= kMaxDifferenceS) return kClocksDiffer;
  const UniqueFd clock(files_.Open(directory, kClock, O_WRONLY | O_CREAT));
  answer = clock.get();
  if (answer >= 0) answer = files_.Touch(clock.get());
  if (answer >= 0) answer = files_.Stat(clock.get(), "", &found);
  *now_s = found.st_mtime;
  if (answer < 0) return answer;
  return std::abs(*now_s - now_()) < kMaxDifferenceS ? answer : kClocksDiffer;
}

// A stamp that has changed since the last look is that of a host that sweeps, whatever its clock
// says. A time in the future, of a clock that was wrong, counts for as long as one in the past. If
// two hosts look in the same moment, one goes on. Calls tell that a store is not there, and a host
// that may only read leaves sweeps to others.
bool FileSweep::Begin() {
  FilePath path(&files_, &root_);  // for this look alone, so that nothing stays open
  const auto fail = [this](const char* file, int error) {
    if (error != -ENOENT && error != kNoRoot && error != -EROFS) Fail(kCannotSweep, file, error);
    return false;
  };
  int64_t stamp = 0;
  const int directory = path.Enter(kTop, false);
  const int read = directory < 0 ? directory : ReadStamp(directory, &stamp);
  if (read < 0) return fail(kStampPath, read);
  const int asked = AskTime(directory, &now_s_);
  if (asked < 0) return fail(kClockPath, asked);
  const bool has_changed = std::exchange(last_stamp_, stamp) != stamp;
  if (has_changed || std::abs(stamp - now_s_) < kEveryS) return false;
  renewed_at_s_ = now_();
  const int set = files_.SetTime(directory, kStamp, now_s_);
  return set < 0 ? fail(kStampPath, set) : true;
}

// Each second at most, so that other hosts do not begin while this one sweeps, and so that one that
// was held up for long ends if another has begun.
bool FileSweep::GoOn() {
  if (!pause_()) return false;
  const int64_t own_s = now_();
  return std::exchange(renewed_at_s_, own_s) == own_s || RenewStamp();
}

bool FileSweep::RenewStamp() {
  FilePath path(&files_, &root_);
  const auto fail = [this](const char* file, int error) {
    Fail(kHasEnded, file, error);
    return false;
  };
  int64_t stamp = 0;
  const int directory = path.Enter(kTop, false);
  const int read = directory < 0 ? directory : ReadStamp(directory, &stamp);
  if (read < 0) return fail(kStampPath, read);
  if (stamp != now_s_) return false;
  const int asked = AskTime(directory, &now_s_);
  if (asked < 0) return fail(kClockPath, asked);
  const int set = files_.SetTime(directory, kStamp, now_s_);
  return set < 0 ? fail(kStampPath, set) : true;
}

// The first pass sums up all files, and the second removes those beyond the bound that would end
// soonest.
void FileSweep::Run() {
  bytes_.clear();
  excess_bytes_ = 0;
  if (!Pass() || max_bytes_ == 0) return;
  uint64_t total = 0;
  for (const auto& [period, bytes] : bytes_) total += bytes;
  if (total <= max_bytes_) return;
  uint64_t excess = total - max_bytes_;
  for (const auto& [period, bytes] : bytes_) {
    last_period_ = period;
    if (bytes >= excess) break;
    excess -= bytes;
  }
  excess_bytes_ = excess;
  (void)Pass();
}

bool FileSweep::Pass() {
  FilePath path(&files_, &root_);  // for this pass alone, so that nothing stays open
  const std::string top = FilePlace::OfPrefix(kColdNamePrefix)->directory;
  const int directory = path.Enter(top, false);
  removes_excess_ = excess_bytes_ > 0;
  FileTree tree(&files_, {.file = std::bind_front(&FileSweep::VisitFile, this),
                          .emptied = std::bind_front(&FileSweep::VisitEmptied, this),
                          .skip = [this](int parent, const char* name, int error) {
                            Fail(kLeavesOut, PathOf(parent, name), error);
                            return CountEntry();
                          }});
  const int walked = directory < 0 ? directory : tree.Walk(directory);
  if (walked < 0 && walked != -ENOENT) Fail(kHasEnded, top, walked);
  return walked == 1;
}

FileTree::Step FileSweep::VisitFile(int directory, const char* name, const struct stat& found) {
  if (!CountEntry()) return FileTree::Step::kEnd;
  if (!S_ISREG(found.st_mode)) return FileTree::Step::kKept;
  const bool goes = removes_excess_ ? IsExcess(name, found) : MustGo(name, found);
  return goes ? Remove(directory, name, 0) : FileTree::Step::kKept;
}

FileTree::Step FileSweep::VisitEmptied(int directory, const char* name, const struct stat& found) {
  if (!CountEntry()) return FileTree::Step::kEnd;
  const bool is_young = std::abs(found.st_mtime - now_s_) <= kMaxTemporaryAgeS;
  return is_young ? FileTree::Step::kKept : Remove(directory, name, AT_REMOVEDIR);
}

// A writer may have come to a directory, and a reader on this host may have a file open that NFS
// then keeps.
FileTree::Step FileSweep::Remove(int directory, const char* name, int flags) {
  const int removed = files_.Unlink(directory, name, flags);
  if (removed >= 0 || removed == -ENOENT) return FileTree::Step::kGone;
  const bool is_in_use = removed == -ENOTEMPTY || removed == -EEXIST || removed == -EBUSY;
  if (!is_in_use) Fail(kLeavesOut, PathOf(directory, name), removed);
  return FileTree::Step::kKept;
}

void FileSweep::Fail(std::string_view attempt, const std::string& path, int error) {
  std::string failure(attempt);
  failure.append(": ").append(path).append(": ");
  failure += error == kClocksDiffer
                 ? "the clocks of this host and of the file system differ by a minute or more"
                 : FileOutcome::Of(error).text;
  if (failure_.empty()) failure_ = failure;
  has_others_ = has_others_ || failure != failure_;
}

bool FileSweep::MustGo(const char* name, const struct stat& found) {
  if (IsTemporary(name)) return std::abs(found.st_mtime - now_s_) > kMaxTemporaryAgeS;
  if (found.st_mtime <= now_s_ || found.st_mtime > now_s_ + kMaxLifeS) return true;
  bytes_[found.st_mtime / kPeriodS] += static_cast<uint64_t>(found.st_size);
  return false;
}

bool FileSweep::IsExcess(const char* name, const struct stat& found) {
  const int64_t period = found.st_mtime / kPeriodS;
  if (IsTemporary(name) || period > last_period_) return false;
  if (period < last_period_) return true;
  if (excess_bytes_ == 0) return false;
  excess_bytes_ -= std::min(excess_bytes_, static_cast<uint64_t>(found.st_size));
  return true;
}

}  // namespace kvtier
