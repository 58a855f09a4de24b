// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/disk_retry.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/posix.h"
#include "base/units.h"
#include "tiers/storage/disk_set_file.h"

namespace kvtier {
namespace {

constexpr uint64_t kProbeBytes = 4 * kKiB;
constexpr int64_t kLongestFirstPauseMs = int64_t{24} * 3600 * 1000;
constexpr mode_t kPrivateDirectory = 0700;
constexpr mode_t kPrivateFile = 0600;

tl::unexpected<Error> Failed(std::string_view call, const std::string& path) {
  return tl::unexpected<Error>(
      ErrnoError(ErrorCode::kIoError, errno, fmt::format("{} {}", call, path)));
}

// The tier's own files have their sizes anew at a start: their space counts as free.
uint64_t OwnBytes(const std::filesystem::path& directory) {
  struct stat status {};
  const std::filesystem::path path = directory / kDiskFileName;
  return ::stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_blocks) * 512 : 0;
}

Status WriteFile(const std::string& path, std::string_view bytes) {
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kPrivateFile));
  if (!file.valid()) return Failed("create", path);
  if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    return Failed("write", path);
  }
  if (::fsync(file.get()) != 0) return Failed("sync", path);
  return {};
}

}  // namespace

bool DiskMayComeBack(const Error& why) {
  if (why.reason == "disk_full" || why.reason.starts_with("index_")) return true;
  constexpr std::array kPassing = {"ENOENT", "ENOSPC", "EIO",    "EROFS",    "ENODEV",
                                   "ENXIO",  "ESTALE", "EDQUOT", "ENOTCONN", "EFBIG"};
  return std::ranges::find(kPassing, why.reason) != kPassing.end();
}

namespace {

// One of several directories is not made, since a start does not either.
Status ProbeDirectory(const std::string& directory, const DiskConfig& disk, uint64_t slab_bytes) {
  if (disk.directories.empty() && ::mkdir(directory.c_str(), kPrivateDirectory) != 0 &&
      errno != EEXIST) {
    return Failed("mkdir", directory);
  }
  struct statvfs space {};
  if (::statvfs(directory.c_str(), &space) != 0) return Failed("statvfs", directory);
  const uint64_t room = uint64_t{space.f_bavail} * space.f_frsize + OwnBytes(directory);
  const uint64_t wanted = disk.free_floor_bytes + slab_bytes + kFirstSlabOffset;
  if (room < wanted) {
    return MakeError(ErrorCode::kResourceExhausted, "disk_full",
                     fmt::format("{} of {} wanted", FormatByteSize(room), FormatByteSize(wanted)));
  }
  const std::string path = directory + "/probe";
  const Status written = WriteFile(path, std::string(kProbeBytes, '\0'));
  (void)::unlink(path.c_str());
  return written;
}

}  // namespace

Status ProbeDisk(const DiskConfig& disk, uint64_t slab_bytes) {
  Status probed;
  for (const std::filesystem::path& directory : disk.Places()) {
    probed = ProbeDirectory(directory.native(), disk, slab_bytes);
    if (probed) return {};
  }
  return probed;
}

// Others may have put something there, as in /tmp, on which an open would hang.
int64_t RetryNote::PauseMs() const {
  std::array<char, 24> text{};
  int64_t pause_ms = 0;
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.valid() && ::read(file.get(), text.data(), text.size()) > 0) {
    (void)std::from_chars(text.data(), text.data() + text.size(), pause_ms);
  }
  return std::clamp(pause_ms, kFirstPauseMs, kLongestFirstPauseMs);
}

Status RetryNote::WriteNextPause() const {
  return WriteFile(path_.native(), std::to_string(4 * PauseMs()));
}

void RetryNote::Remove() const { (void)::unlink(path_.c_str()); }

DiskRetry::DiskRetry(EventLoop* loop, Executor* executor, std::function<Status()> probe,
                     std::function<void()> on_back, int64_t pause_ms)
    : executor_(*executor),
      probe_(std::move(probe)),
      on_back_(std::move(on_back)),
      pause_ms_(pause_ms),
      timer_(loop) {
  Wait();
}

void DiskRetry::Wait() {
  timer_.Start(std::exchange(pause_ms_, std::min(2 * pause_ms_, kLongestPauseMs)),
               [this] { Probe(); });
}

// The probe is a copy: it may outlive this.
void DiskRetry::Probe() {
  const auto found = std::make_shared<Status>();
  executor_.Run([probe = probe_, found] { *found = probe(); }, gate_.WhileOpen([this, found] {
    if (!*found) return Wait();
    on_back_();
  }));
}

}  // namespace kvtier
