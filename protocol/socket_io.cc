// SPDX-License-Identifier: Apache-2.0
#include "protocol/socket_io.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace kvtier::wire {
namespace {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// More descriptors of this user are on their way than its processes may have open, or the kernel
// has no memory: neither is the peer's doing, and both pass.
bool MayPass(int error) { return error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM; }

bool PeerIsGone(int error) { return error == EPIPE || error == ECONNRESET || error == ENOTCONN; }

tl::unexpected<Error> SocketError(int error, const char* reason) {
  if (PeerIsGone(error)) {
    return MakeError(ErrorCode::kUnavailable, "peer_closed", std::strerror(error));
  }
  return MakeError(ErrorCode::kIoError, reason, std::strerror(error));
}

// Takes ownership of every descriptor in the message, also of unwanted ones: a descriptor that is
// not closed here would stay open in this process for ever.
void CollectDescriptors(msghdr* message, std::vector<UniqueFd>* descriptors) {
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      UniqueFd owner(fd);
      if (descriptors != nullptr) descriptors->push_back(std::move(owner));
    }
  }
}

}  // namespace

Result<std::optional<size_t>> Send(int socket, std::span<const std::byte> bytes,
                                   std::span<const int> descriptors) {
  KVT_CHECK(descriptors.size() <= kMaxDescriptorsPerSend);
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptorsPerSend * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  while (true) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (WouldBlock(errno)) return std::nullopt;
    if (MayPass(errno)) {
      return MakeError(ErrorCode::kResourceExhausted, "send_refused", std::strerror(errno));
    }
    if (errno != EINTR) return SocketError(errno, "send_failed");
  }
}

// Without room for them the kernel does not hand the descriptors out, but says that they are there.
Result<std::optional<Waiting>> Peek(int socket, std::span<std::byte> space) {
  iovec part{space.data(), space.size()};
  while (true) {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const ssize_t waiting = ::recvmsg(socket, &message, MSG_PEEK);
    if (waiting >= 0) {
      return Waiting{.bytes = static_cast<size_t>(waiting),
                     .descriptors = (message.msg_flags & MSG_CTRUNC) != 0};
    }
    if (WouldBlock(errno)) return std::nullopt;
    if (errno != EINTR) return SocketError(errno, "receive_failed");
  }
}

Result<std::optional<size_t>> Receive(int socket, std::span<std::byte> space,
                                      std::vector<UniqueFd>* descriptors) {
  iovec part{space.data(), space.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptorsPerReceive * sizeof(int))];
  while (true) {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (received >= 0) {
      CollectDescriptors(&message, descriptors);
      return static_cast<size_t>(received);
    }
    if (WouldBlock(errno)) return std::nullopt;
    if (errno != EINTR) return SocketError(errno, "receive_failed");
  }
}

}  // namespace kvtier::wire
