// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/acceptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "base/c_pointer.h"
#include "base/machine.h"
#include "base/posix.h"
#include "daemon/net/descriptor_kind.h"
#include "daemon/net/linger_breaker.h"

namespace kvtier {
namespace {

// Connections that the kernel keeps while the loop is busy: all engines of a machine may come back
// at once after the daemon's restart.
constexpr int kBacklog = 256;
// A flood of connections must not keep the loop from everything else: after this many the other
// events have their turn.
constexpr int kMaxAcceptsPerEvent = 16;
// How long to wait after accept() has failed, mostly for want of descriptors. The socket stays
// readable meanwhile, so that waiting for it would spin.
constexpr int64_t kAcceptRetryMs = 50;
// Each try is a connection for a daemon that does listen there.
constexpr auto kListenerPatience = std::chrono::milliseconds(500);
constexpr auto kListenerPoll = std::chrono::milliseconds(20);
// No process takes these connections any more, and the queue for them must not fill.
constexpr auto kEndPoll = std::chrono::milliseconds(500);

tl::unexpected<Error> SystemError(std::string_view call, const std::string& path) {
  return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, fmt::format("{} {}", call, path)));
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return MakeError(ErrorCode::kInvalidArgument, "socket_path_too_long", path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

void Set(int socket, int level, int option, int value) {
  // A failure leaves a socket that works.
  (void)::setsockopt(socket, level, option, &value, sizeof(value));
}

// A peer whose machine is gone says nothing: the kernel has to find out.
void PrepareTcp(int connection) {
  Set(connection, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(connection, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(connection, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  Set(connection, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  Set(connection, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// REQUIRES: the host is a literal, as ParseListenAddress gives it.
CPointer<addrinfo, ::freeaddrinfo> AddressOf(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  KVT_CHECK(::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) == 0);
  return CPointer<addrinfo, ::freeaddrinfo>(found);
}

// Close-on-exec, because the daemon's children must not keep its sockets; non-blocking, because the
// loop must never wait for a peer.
UniqueFd NewSocket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// The process that began to listen, of a connection to it; 0: of another namespace.
pid_t ListenerOf(int connection) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  (void)::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
  return peer.pid;
}

// Whether a process listens there, or another error than those that prove that none does. Asked
// again for a while: a daemon that has ended listens until its teardown process has closed its
// sockets, and one that ends removes the file.
Result<bool> IsListenedOn(const sockaddr_un& address, const std::string& path,
                          std::chrono::steady_clock::time_point until) {
  const auto start = std::chrono::steady_clock::now();
  bool ends = false;
  while (true) {
    const UniqueFd probe = NewSocket(AF_UNIX);
    if (!probe.valid()) return SystemError("socket for", path);
    const auto* const to = reinterpret_cast<const sockaddr*>(&address);
    const bool connected = ::connect(probe.get(), to, sizeof(address)) == 0;
    if (!connected && (errno == ECONNREFUSED || errno == ENOENT)) return false;
    // Engines that come back may have filled the queue before the first question.
    if (!connected && errno == EAGAIN) ends = true;
    if (connected) ends = IsGone(ListenerOf(probe.get()));
    const auto now = std::chrono::steady_clock::now();
    const bool is_young = now - start < kListenerPatience;
    if (!is_young && (!ends || now >= until)) return true;
    std::this_thread::sleep_for(is_young ? kListenerPoll : kEndPoll);
  }
}

Result<UniqueFd> BindPort(const ListenAddress& address) {
  const auto found = AddressOf(address);
  UniqueFd socket = NewSocket(found->ai_family);
  // Connections of an earlier daemon that are still being closed must not hold up this one.
  if (socket.valid()) Set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (!socket.valid() || ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0) {
    return SystemError("listening on", fmt::format("{}:{}", address.host, address.port));
  }
  return socket;
}

}  // namespace

// A file of another kind stays: a mistyped path must not delete an operator's data.
Status Acceptor::CheckPath(const std::string& path, bool makes_directory) {
  KVT_RETURN_IF_ERROR(AddressOf(path));
  struct stat status;
  if (::lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) {
    return MakeError(ErrorCode::kAlreadyExists, "socket_path_taken", path + " is not a socket");
  }
  std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  const bool is_made = makes_directory && !std::filesystem::exists(directory, ignored);
  if (is_made) directory = directory.parent_path();
  if (::access((directory / ".").c_str(), W_OK | X_OK) == 0) return {};
  return SystemError(is_made ? "make a directory in" : "make a socket in", directory);
}

Status Acceptor::CheckFree(const std::string& path, std::chrono::steady_clock::time_point until) {
  KVT_RETURN_IF_ERROR(CheckPath(path, /*makes_directory=*/false));
  KVT_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  KVT_ASSIGN_OR_RETURN(const bool listened_on, IsListenedOn(address, path, until));
  if (!listened_on) return {};
  return MakeError(ErrorCode::kAlreadyExists, "socket_in_use",
                   "another process listens on " + path);
}

// The port is most likely the running daemon's.
Status Acceptor::CheckPort(const ListenAddress& address) {
  const Result<UniqueFd> bound = BindPort(address);
  if (!bound && bound.error().reason != "EADDRINUSE") return tl::unexpected(bound.error());
  return {};
}

Status Acceptor::SetMode(const std::string& path, mode_t mode) {
  const UniqueFd file(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat found {};
  if (!file.valid() || ::fstat(file.get(), &found) != 0) return SystemError("open", path);
  if (!S_ISSOCK(found.st_mode)) errno = ENOTSOCK;
  const std::string opened = fmt::format("/proc/self/fd/{}", file.get());
  if (S_ISSOCK(found.st_mode) && ::chmod(opened.c_str(), mode) == 0) return {};
  return SystemError("chmod", path);
}

Result<std::unique_ptr<Acceptor>> Acceptor::Listen(EventLoop* loop, Log* log,
                                                   const std::string& path, mode_t mode,
                                                   bool descriptors,
                                                   std::function<void(UniqueFd)> accepted) {
  KVT_RETURN_IF_ERROR(CheckFree(path));
  // The socket of a daemon that is gone.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError("unlink", path);
  KVT_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd socket = NewSocket(AF_UNIX);
  if (!socket.valid()) return SystemError("socket for", path);
  // The file gets the socket's mode less the umask, so that it is never open to more than meant.
  if (::fchmod(socket.get(), mode) != 0) return SystemError("fchmod", path);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError("bind", path);
  }
  KVT_RETURN_IF_ERROR(SetMode(path, mode));
  // Before listen: connections may carry messages before they are accepted.
  if (!descriptors) PassDescriptors(socket.get(), false);
  if (::listen(socket.get(), kBacklog) != 0) return SystemError("listen", path);
  return std::unique_ptr<Acceptor>(
      new Acceptor(loop, log, path, std::move(socket), descriptors, std::move(accepted)));
}

Result<std::unique_ptr<Acceptor>> Acceptor::ListenOnPort(EventLoop* loop, Log* log,
                                                         const ListenAddress& address,
                                                         std::function<void(UniqueFd)> accepted) {
  KVT_ASSIGN_OR_RETURN(UniqueFd socket, BindPort(address));
  if (::listen(socket.get(), kBacklog) != 0) {
    return SystemError("listening on", fmt::format("{}:{}", address.host, address.port));
  }
  return std::unique_ptr<Acceptor>(
      new Acceptor(loop, log, {}, std::move(socket), /*descriptors=*/true, std::move(accepted)));
}

uint16_t Acceptor::port() const {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return 0;
  sockaddr_in four;  // the port stands at the same place for both families
  std::memcpy(&four, &storage, sizeof(four));
  return ntohs(four.sin_port);
}

Acceptor::Acceptor(EventLoop* loop, Log* log, std::string path, UniqueFd socket, bool descriptors,
                   std::function<void(UniqueFd)> accepted)
    : log_(log),
      path_(std::move(path)),
      socket_(std::move(socket)),
      descriptors_(descriptors),
      accepted_(std::move(accepted)),
      retry_(loop),
      watch_(std::in_place, loop, socket_.get()) {
  if (!path_.empty()) (void)::lstat(path_.c_str(), &file_);
  Wait();
}

// Another daemon may have made one there since this one's was removed.
Acceptor::~Acceptor() {
  struct stat there {};
  const bool has_its_place = !path_.empty() && ::lstat(path_.c_str(), &there) == 0 &&
                             there.st_dev == file_.st_dev && there.st_ino == file_.st_ino;
  if (has_its_place) ::unlink(path_.c_str());
  // Connections that were not accepted go with the socket, and what they have sent with them.
  watch_.reset();
  const LingerBreaker breaker;
  socket_.Reset();
}

void Acceptor::Wait() {
  watch_->WaitReadable([this] { AcceptAll(); });
}

void Acceptor::AcceptAll() {
  for (int i = 0; i < kMaxAcceptsPerEvent; ++i) {
    UniqueFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.valid()) {
      if (!descriptors_) PassDescriptors(connection.get(), false);
      if (path_.empty()) PrepareTcp(connection.get());
      accepted_(std::move(connection));
      continue;
    }
    // A client that left before it was accepted is its own matter, and counts as one of the
    // accepts.
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    log_->Warning("server.accept_failed", "{}: {}", path_.empty() ? "TCP" : path_,
                  std::strerror(errno));
    retry_.Start(kAcceptRetryMs, [this] { Wait(); });
    return;
  }
  Wait();
}

}  // namespace kvtier
