// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/peer.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace kvtier {
namespace {

// SO_PEERPIDFD of Linux 6.5; older headers lack the name.
constexpr int kSoPeerPidfd = 77;
// pidfds are files of a file system of their own since Linux 6.9, with a number for each process.
constexpr decltype(statfs::f_type) kPidFsMagic = 0x50494446;

Error PeerError(std::string_view call) {
  const ErrorCode code = errno == ESRCH    ? ErrorCode::kUnavailable
                         : errno == ENOSYS ? ErrorCode::kUnsupported
                                           : ErrorCode::kIoError;
  return {code, errno == ESRCH ? "peer_gone" : "peer_unknown",
          fmt::format("{}: {}", call, std::strerror(errno))};
}

bool HasHungUp(int socket) {
  pollfd poll_fd{socket, 0, 0};
  return ::poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLHUP | POLLERR)) != 0;
}

Result<UniqueFd> OpenPidfd(int socket, int32_t pid) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &length) == 0) return UniqueFd(fd);
  // Kernels before 6.5 do not know the option; for them the process's number has to do.
  if (errno != ENOPROTOOPT && errno != EINVAL) return tl::unexpected(PeerError("SO_PEERPIDFD"));

  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) return tl::unexpected(PeerError("pidfd_open"));
  // The number may have been given to another process between connect and pidfd_open. If the
  // connection still stands now, its owner lived all the time and the number was never free.
  if (HasHungUp(socket)) {
    return MakeError(ErrorCode::kUnavailable, "peer_gone", "the connection was closed");
  }
  return pidfd;
}

// The number that the process behind a pidfd has among all since the boot; 0: the kernel gives
// none.
uint64_t NumberOf(int pidfd) {
  struct statfs system {};
  struct stat file {};
  const bool has_number =
      ::fstatfs(pidfd, &system) == 0 && system.f_type == kPidFsMagic && ::fstat(pidfd, &file) == 0;
  return has_number ? file.st_ino : 0;
}

// The name, in brackets, may hold anything: the text that follows it is counted from its end.
uint64_t StartTimeOf(int32_t pid) {
  constexpr int kFieldsBefore = 19;  // from the state to the start time
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < kFieldsBefore; ++i) fields >> field;
  uint64_t start_time = 0;
  return fields >> start_time ? start_time : 0;
}

}  // namespace

Result<Peer> SocketPeerInspector::Inspect(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return tl::unexpected(PeerError("SO_PEERCRED"));
  }
  Peer peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.gid = credentials.gid;
  KVT_ASSIGN_OR_RETURN(peer.pidfd, OpenPidfd(socket, peer.pid));
  return peer;
}

std::string UserOf(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return "user ?";
  return fmt::format("user {}", credentials.uid);
}

TenantMap::TenantMap(const std::vector<TenantConfig>& tenants, uint32_t own_uid) {
  // Without configured tenants only the daemon's own user is served: an open default would share
  // one cache among all users of the machine.
  if (tenants.empty()) by_uid_.emplace(own_uid, kDefaultTenant);
  for (const TenantConfig& tenant : tenants) {
    for (const uint32_t uid : tenant.uids) by_uid_.emplace(uid, tenant.name);
    for (const uint32_t uid : tenant.user_uids) by_uid_.emplace(uid, tenant.name);
    for (const uint32_t gid : tenant.gids) by_gid_.emplace(gid, tenant.name);
  }
}

Result<std::string> TenantMap::TenantOf(const Peer& peer) const {
  if (const auto found = by_uid_.find(peer.uid); found != by_uid_.end()) return found->second;
  if (const auto found = by_gid_.find(peer.gid); found != by_gid_.end()) return found->second;
  return MakeError(ErrorCode::kPermissionDenied, "unknown_user",
                   fmt::format("user {} (group {}) belongs to no tenant", peer.uid, peer.gid));
}

// The files of /proc may be hidden from the daemon, and pidfds are not.
ProcessIdentity IdentityOf(int32_t pid) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const uint64_t number = pidfd.valid() ? NumberOf(pidfd.get()) : 0;
  return {.pid = pid, .birth = number != 0 ? number : StartTimeOf(pid)};
}

bool ProcessHasEnded(int pidfd) {
  pollfd poll_fd{pidfd, POLLIN, 0};
  return ::poll(&poll_fd, 1, 0) > 0;
}

// A process keeps its number until its parent has waited for it, which is after its end.
bool IsSameProcess(const Peer& known, const Peer& other) {
  if (ProcessHasEnded(known.pidfd.get())) return false;
  if (known.pid != 0) return known.pid == other.pid;
  const uint64_t number = NumberOf(known.pidfd.get());
  return other.pid == 0 && number != 0 && number == NumberOf(other.pidfd.get());
}

}  // namespace kvtier
