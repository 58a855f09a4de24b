// SPDX-License-Identifier: Apache-2.0
#include "client/core/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace kvtier::client {
namespace {

// Since Linux 6.5; headers may be older than the kernel.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

// Readable, or hung up: for a pidfd, that the process has ended; for a socket, that something has
// come or that its peer has closed it.
bool Stirs(int fd) {
  pollfd waits{fd, POLLIN | POLLRDHUP, 0};
  return ::poll(&waits, 1, 0) > 0;
}

UniqueFd ProcessOf(int socket) {
  int process = -1;
  socklen_t size = sizeof(process);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0)
    return UniqueFd(process);
  ucred peer{};
  size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return {};
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  // The number may have been another process's by then, but not if the peer still held its end.
  return Stirs(socket) ? UniqueFd() : std::move(opened);
}

}  // namespace

PeerProcess::PeerProcess(int socket) : process_(ProcessOf(socket)) {
  if (process_.valid() && Stirs(process_.get())) process_ = UniqueFd();
}

bool PeerProcess::Ended() const { return process_.valid() && Stirs(process_.get()); }

}  // namespace kvtier::client
