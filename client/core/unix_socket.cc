// SPDX-License-Identifier: Apache-2.0
#include "client/core/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace kvtier::client {
namespace {

// Holds the largest frame, so that a request of a whole sequence is one system call. The kernel
// cuts it to net.core.[rw]mem_max.
constexpr int kSocketBufferBytes = 4 << 20;

Error ConnectError(int error_number, const std::string& path) {
  const std::string context = path + ": " + std::strerror(error_number);
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
    case ECONNRESET:
      return {ErrorCode::kUnavailable, "no_daemon", context};
    case EACCES:
    case EPERM:
      return {ErrorCode::kPermissionDenied, "socket_permission", context};
    case EAGAIN:
    case EINPROGRESS:
      return {ErrorCode::kTimeout, "connect_timeout", context};
    default:
      return {ErrorCode::kIoError, "connect_failed", context};
  }
}

// A Unix socket's connect waits for a place in the listener's backlog no longer than the send
// time-out.
void SetConnectTimeout(int fd, Deadline deadline) {
  const int timeout_ms = std::max(PollTimeoutMs(deadline), 1);
  timeval timeout{};
  timeout.tv_sec = timeout_ms / 1000;
  timeout.tv_usec = (timeout_ms % 1000) * 1000;
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
}

}  // namespace

Result<UniqueFd> ConnectUnixSocket(const std::string& path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_socket_path",
                     "a socket path has 1 to " + std::to_string(sizeof(address.sun_path) - 1) +
                         " bytes, this one has " + std::to_string(path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());

  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return tl::unexpected(ConnectError(errno, path));
  for (const int option : {SO_SNDBUF, SO_RCVBUF}) {
    (void)setsockopt(fd.get(), SOL_SOCKET, option, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
  }
  SetConnectTimeout(fd.get(), deadline);
  int rc;
  do {
    rc = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (rc != 0 && errno == EINTR && PollTimeoutMs(deadline) > 0);
  if (rc != 0) return tl::unexpected(ConnectError(errno, path));
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return tl::unexpected(ConnectError(errno, path));
  }
  return fd;
}

}  // namespace kvtier::client
