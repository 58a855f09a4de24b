// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/notify_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>

#include "base/result.h"

namespace kvtier {

NotifySocket::NotifySocket() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const std::string path = directory_.path() / "notify";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KVT_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  KVT_CHECK(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
}

NotifySocket::~NotifySocket() { ::unsetenv("NOTIFY_SOCKET"); }

std::string NotifySocket::Receive(int timeout_ms) {
  pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, timeout_ms) != 1) return "";
  char buffer[4096];
  const ssize_t bytes = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
  return bytes > 0 ? std::string(buffer, static_cast<size_t>(bytes)) : "";
}

std::string NotifySocket::ReceiveUntil(const std::string& text) {
  for (std::string message = Receive(); !message.empty(); message = Receive()) {
    if (message.find(text) != std::string::npos) return message;
  }
  return "";
}

}  // namespace kvtier
