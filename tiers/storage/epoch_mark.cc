// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/epoch_mark.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>

#include "base/errno_error.h"
#include "base/unique_fd.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "index.epoch";
constexpr size_t kMaxBytes = 32;  // twenty digits and a newline

tl::unexpected<Error> Failed(const char* what, const fs::path& path) {
  return MakeError(ErrorCode::kIoError, "epoch_mark",
                   ErrnoError(ErrorCode::kIoError, errno, what + (" " + path.native())).context);
}

Status SyncDirectory(const fs::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return Failed("sync", directory);
  return {};
}

}  // namespace

uint64_t EpochMark::Read(const fs::path& directory) {
  const UniqueFd fd(::open((directory / kName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return errno == ENOENT ? 0 : UINT64_MAX;
  std::array<char, kMaxBytes> text;
  const ssize_t bytes = ::read(fd.get(), text.data(), text.size());
  if (bytes < 2 || text[static_cast<size_t>(bytes) - 1] != '\n') return UINT64_MAX;
  uint64_t epoch = 0;
  const char* const end = text.data() + bytes - 1;
  const auto parsed = std::from_chars(text.data(), end, epoch);
  return parsed.ec == std::errc() && parsed.ptr == end ? epoch : UINT64_MAX;
}

Status EpochMark::Write(const fs::path& directory, uint64_t epoch) {
  const fs::path path = directory / kName;
  const fs::path fresh = path.string() + ".new";
  const std::string text = std::to_string(epoch) + "\n";
  {
    const UniqueFd fd(
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return Failed("create", fresh);
    if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      return Failed("write", fresh);
    }
    if (::fsync(fd.get()) != 0) return Failed("sync", fresh);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return Failed("rename", fresh);
  return SyncDirectory(directory);
}

Status EpochMark::Remove(const fs::path& directory) {
  const fs::path path = directory / kName;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return Failed("remove", path);
  return SyncDirectory(directory);
}

}  // namespace kvtier
