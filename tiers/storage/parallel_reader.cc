// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/parallel_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <span>
#include <thread>
#include <utility>

#include "base/posix.h"
#include "tiers/storage/disk_set_file.h"

namespace kvtier {
Result<ParallelReader> ParallelReader::Open(const std::vector<std::filesystem::path>& directories,
                                            int threads) {
  std::vector<UniqueFd> fds;
  for (const std::filesystem::path& directory : directories) {
    KVT_ASSIGN_OR_RETURN(DiskSetFile file, DiskSetFile::Open(directory / kDiskFileName, false));
    fds.push_back(file.TakeFd());
  }
  return ParallelReader(std::move(fds), threads);
}

// Blocks until all reads have ended; the calling thread does its part. Each read is taken by one
// thread only, which alone writes its status. The threads are joined when `threads` goes, which is
// before `next` and `work` do.
void ParallelReader::Read(std::span<DiskRead> reads) const {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < reads.size(); i = next++) reads[i].status = ReadOne(reads[i]);
  };
  std::vector<std::jthread> threads;
  const size_t wanted = std::min(reads.size(), static_cast<size_t>(std::max(threads_, 1)));
  for (size_t i = 1; i < wanted; ++i) threads.emplace_back(work);
  work();
}

// A short read is an error: the caller asks only for what lies within the files.
Status ParallelReader::ReadOne(const DiskRead& read) const {
  if (read.file >= files_.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "no_such_file", fmt::format("{}", read.file));
  }
  ssize_t count = 0;
  do {
    count = ::pread(files_[read.file].get(), read.into.data(), read.into.size(),
                    static_cast<off_t>(read.offset));
  } while (count < 0 && errno == EINTR);
  const auto where = [&] {
    return fmt::format("{} bytes of file {} at {}", read.into.size(), read.file, read.offset);
  };
  if (count < 0) return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, where()));
  if (static_cast<size_t>(count) != read.into.size()) {
    return MakeError(ErrorCode::kIoError, "short_io", where());
  }
  return {};
}

}  // namespace kvtier
