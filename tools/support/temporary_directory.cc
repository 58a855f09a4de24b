// SPDX-License-Identifier: Apache-2.0
#include "tools/support/temporary_directory.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/posix.h"

namespace kvtier {

Result<TemporaryDirectory> TemporaryDirectory::Create(std::string parent) {
  if (parent.empty()) {
    const char* configured = std::getenv("TMPDIR");
    parent = configured != nullptr && *configured != '\0' ? configured : "/tmp";
  }
  std::string path = parent + "/kvtier-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    return tl::unexpected(
        ErrnoError(ErrorCode::kIoError, errno, "making a directory in " + parent));
  }
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory& TemporaryDirectory::operator=(TemporaryDirectory&& other) noexcept {
  if (this != &other) {
    Remove();
    path_ = std::exchange(other.path_, std::string());
  }
  return *this;
}

void TemporaryDirectory::Remove() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvtier
