// SPDX-License-Identifier: Apache-2.0
// Listens on a TCP port.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/config/endpoints.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {

// Event loop only. It owns the listening socket; the connections that it accepts belong to the
// callback. It never gives up: when no descriptor is left it waits and tries again.
class TcpAcceptor {
 public:
  // Binds and begins to accept. `accepted` gets each connection, non-blocking and close-on-exec;
  // the kernel ends it when its peer has been silent for half a minute. `loop` is borrowed. Errors:
  // kIoError by errno name.
  [[nodiscard]] static Result<std::unique_ptr<TcpAcceptor>> Listen(
      EventLoop* loop, const ListenAddress& address, std::function<void(UniqueFd)> accepted);
  TcpAcceptor(const TcpAcceptor&) = delete;
  TcpAcceptor& operator=(const TcpAcceptor&) = delete;

  // The port that it listens on, also where the kernel chose it.
  [[nodiscard]] uint16_t port() const;

 private:
  TcpAcceptor(EventLoop* loop, UniqueFd socket, std::function<void(UniqueFd)> accepted);
  void Wait();
  void AcceptAll();

  const UniqueFd socket_;
  const std::function<void(UniqueFd)> accepted_;
  Timer retry_;
  FdWatch watch_;
};

}  // namespace kvtier
