// SPDX-License-Identifier: Apache-2.0
#include "client/examples/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_error.h"
#include "base/unique_fd.h"

namespace kvtier::generate {

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIoError;
    return tl::unexpected(ErrnoError(code, errno, "open " + path));
  }
  constexpr size_t kStepBytes = 1 << 20;
  std::string contents;
  while (true) {
    const size_t length = contents.size();
    contents.resize(length + kStepBytes);
    const ssize_t count = ::read(fd.get(), contents.data() + length, kStepBytes);
    if (count < 0 && errno != EINTR) {
      return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "read " + path));
    }
    contents.resize(length + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count == 0) return contents;
    if (contents.size() > max_bytes) {
      return MakeError(ErrorCode::kLimitExceeded, "file_too_large",
                       path + " has more than " + std::to_string(max_bytes) + " bytes");
    }
  }
}

}  // namespace kvtier::generate
