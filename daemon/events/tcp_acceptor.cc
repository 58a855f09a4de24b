// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/tcp_acceptor.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvtier {
namespace {

constexpr int kBacklog = 64;
constexpr int kMaxAcceptsPerEvent = 16;
// As for the clients' socket: after a failure the socket stays readable, so that waiting would
// spin.
constexpr int64_t kAcceptRetryMs = 50;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

// REQUIRES: the host is a literal, as ParseListenAddress gives it.
SocketAddress AddressOf(const ListenAddress& address) {
  SocketAddress found;
  sockaddr_in four{};
  if (::inet_pton(AF_INET, address.host.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(address.port);
    std::memcpy(&found.storage, &four, sizeof(four));
    found.bytes = sizeof(four);
    return found;
  }
  sockaddr_in6 six{};
  KVT_CHECK(::inet_pton(AF_INET6, address.host.c_str(), &six.sin6_addr) == 1);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(address.port);
  std::memcpy(&found.storage, &six, sizeof(six));
  found.bytes = sizeof(six);
  return found;
}

void Set(int socket, int level, int option, int value) {
  // A failure leaves a socket that works.
  (void)::setsockopt(socket, level, option, &value, sizeof(value));
}

// A peer whose machine is gone says nothing: the kernel has to find out.
void PrepareConnection(int socket) {
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  Set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  Set(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace

Result<std::unique_ptr<TcpAcceptor>> TcpAcceptor::Listen(EventLoop* loop,
                                                         const ListenAddress& address,
                                                         std::function<void(UniqueFd)> accepted) {
  const auto error = [&] {
    return tl::unexpected(ErrnoError(
        ErrorCode::kIoError, errno, fmt::format("listening on {}:{}", address.host, address.port)));
  };
  const SocketAddress bound = AddressOf(address);
  UniqueFd socket(::socket(bound.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return error();
  // Connections of an earlier daemon that are still being closed must not hold up this one.
  Set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&bound.storage), bound.bytes) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return error();
  }
  return std::unique_ptr<TcpAcceptor>(
      new TcpAcceptor(loop, std::move(socket), std::move(accepted)));
}

TcpAcceptor::TcpAcceptor(EventLoop* loop, UniqueFd socket, std::function<void(UniqueFd)> accepted)
    : socket_(std::move(socket)),
      accepted_(std::move(accepted)),
      retry_(loop),
      watch_(loop, socket_.get()) {
  Wait();
}

uint16_t TcpAcceptor::port() const {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return 0;
  sockaddr_in four;  // the port stands at the same place for both families
  std::memcpy(&four, &storage, sizeof(four));
  return ntohs(four.sin_port);
}

void TcpAcceptor::Wait() {
  watch_.WaitReadable([this] { AcceptAll(); });
}

void TcpAcceptor::AcceptAll() {
  for (int i = 0; i < kMaxAcceptsPerEvent; ++i) {
    UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.valid()) {
      PrepareConnection(connection.get());
      accepted_(std::move(connection));
      continue;
    }
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    retry_.Start(kAcceptRetryMs, [this] { Wait(); });
    return;
  }
  Wait();
}

}  // namespace kvtier
