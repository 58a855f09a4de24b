// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/disk_watch.h"

#include <sys/stat.h>

#include <cerrno>
#include <memory>

namespace kvtier {

DiskWatch::DiskWatch(std::vector<std::filesystem::path> paths, const Clock* clock,
                     Executor* executor, OnGone on_gone)
    : clock_(*clock),
      executor_(*executor),
      on_gone_(std::move(on_gone)),
      look_at_ms_(clock->MonotonicMs() + kLookEveryMs) {
  for (std::filesystem::path& path : paths) {
    struct stat file {};
    if (::stat(path.c_str(), &file) != 0) continue;
    watched_.push_back({std::move(path), {file.st_dev, file.st_ino}});
  }
}

void DiskWatch::Tick() {
  if (looking_ || !on_gone_ || clock_.MonotonicMs() < look_at_ms_) return;
  looking_ = true;
  Look([this](const std::optional<std::filesystem::path>&) {
    looking_ = false;
    look_at_ms_ = clock_.MonotonicMs() + kLookEveryMs;
  });
}

void DiskWatch::Look(std::function<void(std::optional<std::filesystem::path>)> done) {
  const auto gone = std::make_shared<std::optional<std::filesystem::path>>();
  executor_.Run([watched = watched_, gone] { *gone = FirstGone(watched); },
                gate_.WhileOpen([this, gone, done = std::move(done)] {
                  if (*gone && on_gone_) std::exchange(on_gone_, nullptr)(**gone);
                  done(*gone);
                }));
}

std::optional<std::filesystem::path> DiskWatch::FirstGone(const std::vector<Watched>& watched) {
  for (const Watched& each : watched) {
    struct stat file {};
    const bool answered = ::stat(each.path.c_str(), &file) == 0;
    const bool missing = !answered && (errno == ENOENT || errno == ENOTDIR);
    const bool another = answered && Identity{file.st_dev, file.st_ino} != each.identity;
    if (missing || another) return each.path;
  }
  return std::nullopt;
}

}  // namespace kvtier
