// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/keeper_protocol.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace kvtier {
namespace {

// One descriptor more than a packet may have, so that a second one is noticed. Descriptors that do
// not fit even so are closed by the kernel, which then sets MSG_CTRUNC.
constexpr size_t kDescriptorSpace = 2;

// Takes the first descriptor that came with the message, and closes the others. Returns how many
// there were.
size_t TakeDescriptors(msghdr* message, UniqueFd* first) {
  size_t count = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t descriptors = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < descriptors; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
      UniqueFd received(fd);
      if (count++ == 0) *first = std::move(received);
    }
  }
  return count;
}

}  // namespace

std::string_view KeeperPacket::Name() const {
  const void* const end = std::memchr(name, 0, sizeof(name));
  if (end == nullptr) return {};
  return {name, static_cast<size_t>(static_cast<const char*>(end) - name)};
}

bool SendPacket(int socket, const KeeperPacket& packet, int descriptor) {
  iovec bytes{const_cast<KeeperPacket*>(&packet), sizeof(packet)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof(descriptor));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(packet));
}

Received ReceivePacket(int socket, KeeperPacket* packet, UniqueFd* descriptor) {
  *packet = KeeperPacket{};
  iovec bytes{packet, sizeof(*packet)};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorSpace * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  // A peer that ends without having read everything causes ECONNRESET, once, before the packets
  // that it had sent.
  ssize_t received = 0;
  do {
    received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && (errno == EINTR || errno == ECONNRESET));
  if (received < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? Received::kNothing : Received::kClosed;
  }
  const size_t descriptors = TakeDescriptors(&message, descriptor);
  // An empty packet reads like the end of the stream, so that its sender is taken for gone.
  if (received == 0) return Received::kClosed;
  if (descriptors > 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
    descriptor->Reset();
    return Received::kBad;
  }
  if (received < static_cast<ssize_t>(offsetof(KeeperPacket, number))) return Received::kBad;
  if (packet->magic != kKeeperMagic) return Received::kBad;
  if (packet->version != kKeeperVersion) return Received::kForeign;
  const bool whole =
      received == static_cast<ssize_t>(sizeof(*packet)) && (message.msg_flags & MSG_TRUNC) == 0;
  return whole ? Received::kPacket : Received::kBad;
}

bool IsTrustedPeer(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == 0 || peer.uid == ::geteuid();
}

UniqueFd OpenKeeperSocket(std::string_view path, bool listening) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return {};
  }
  path.copy(address.sun_path, path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return {};
  // The one who listens polls and never waits. For the others this bounds connect(), too.
  const timeval patience{.tv_sec = kKeeperPatienceMs / 1000, .tv_usec = 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  // A path could be another user's link by the time that its mode is changed.
  if (listening && ::fchmod(socket.get(), 0600) != 0) return {};
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  const int done = listening ? ::bind(socket.get(), to, sizeof(address))
                             : ::connect(socket.get(), to, sizeof(address));
  if (done == 0) return socket;
  const int error = errno;
  socket.Reset();
  errno = error;
  return {};
}

}  // namespace kvtier
