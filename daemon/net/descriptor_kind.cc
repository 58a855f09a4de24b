// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/descriptor_kind.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string_view>

namespace kvtier {
namespace {

constexpr std::string_view kGpuDriverPrefix = "nvidia";

// Linux 6.16; older headers lack the name.
constexpr int kSoPassRights = 83;

// AT_STATX_DONT_SYNC: the kernel answers by itself.
bool IsCharacterDevice(int descriptor) {
  struct statx status {};
  const int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  return ::statx(descriptor, "", flags, STATX_TYPE, &status) == 0 && S_ISCHR(status.stx_mode);
}

// Exported memory of a GPU is a descriptor of /dev/nvidiactl. The name is of the mount namespace of
// the process that opened it, and any file may have it, but few are devices.
bool IsOfGpuDriver(int descriptor) {
  std::array<char, 512> target;
  const std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  if (length <= 0) return false;
  const std::string_view path(target.data(), static_cast<size_t>(length));
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with(kGpuDriverPrefix) && IsCharacterDevice(descriptor);
}

}  // namespace

bool IsOfMemory(int descriptor) {
  return ::fcntl(descriptor, F_GET_SEALS) >= 0 || IsOfGpuDriver(descriptor);
}

void PassDescriptors(int socket, bool pass) {
  const int on = pass ? 1 : 0;
  (void)::setsockopt(socket, SOL_SOCKET, kSoPassRights, &on, sizeof(on));
}

}  // namespace kvtier
