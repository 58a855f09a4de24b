// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/file_sweep.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/posix.h"
#include "tiers/cold/cold_object.h"

namespace kvtier {
namespace {

// Files between two pauses.
constexpr uint64_t kFilesOfPart = 256;
// Files are told apart by their ends to so many seconds, so that a sweep's memory is bounded.
constexpr int64_t kPeriodS = 600;
// No object lives longer; a foreign file might.
constexpr int64_t kMaxLifeS = int64_t{367} * 24 * 3600;

constexpr const char* kTop = "kvtier";
constexpr const char* kStamp = ".swept";

bool IsTemporary(std::string_view name) { return name.starts_with(kTemporaryPrefix); }

}  // namespace

void FileSweep::Look() {
  if (Begin()) Run();
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

// A stamp that has changed since the last look is that of a host that sweeps, whatever its clock
// says. A time in the future, of a clock that was wrong, counts for as long as one in the past. If
// two hosts look in the same moment, one goes on.
bool FileSweep::Begin() {
  FilePath path(&files_, &root_);  // for this look alone, so that nothing stays open
  const int directory = path.Enter(kTop, false);
  if (directory < 0) return false;
  int64_t stamp = 0;
  if (ReadStamp(directory, &stamp) < 0) return false;
  now_s_ = now_();
  const bool has_changed = std::exchange(last_stamp_, stamp) != stamp;
  if (has_changed || std::abs(stamp - now_s_) < kEveryS) return false;
  return files_.SetTime(directory, kStamp, now_s_) >= 0;
}

// Each second at most, so that other hosts do not begin while this one sweeps, and so that one that
// was held up for long ends if another has begun.
bool FileSweep::GoOn() {
  if (!pause_()) return false;
  const int64_t now_s = now_();
  if (now_s == now_s_) return true;
  FilePath path(&files_, &root_);
  const int directory = path.Enter(kTop, false);
  int64_t stamp = 0;
  if (directory < 0 || ReadStamp(directory, &stamp) < 0 || stamp != now_s_) return false;
  now_s_ = now_s;
  return files_.SetTime(directory, kStamp, now_s) >= 0;
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
  const int directory = path.Enter(FilePlace::OfPrefix(kColdNamePrefix)->directory, false);
  if (directory < 0) return false;
  const bool removes_excess = excess_bytes_ > 0;
  FileTree tree(&files_, false, [&](int parent, const char* name, const struct stat& found) {
    if (++seen_ % kFilesOfPart == 0 && !GoOn()) return false;
    if (!S_ISREG(found.st_mode)) return true;
    if (removes_excess ? IsExcess(name, found) : MustGo(name, found)) {
      (void)files_.Unlink(parent, name, 0);
    }
    return true;
  });
  return tree.Walk(directory) == 1;
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
