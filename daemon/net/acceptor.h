// SPDX-License-Identifier: Apache-2.0
// Listens on a Unix stream socket.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"

namespace kvtier {

class Acceptor {
 public:
  // Binds `path` with file mode `mode` and begins to accept. A socket that nobody listens on any
  // more is replaced. `accepted` gets each connection, non-blocking and close-on-exec. `loop` and
  // `log` are borrowed. Errors: kAlreadyExists "socket_in_use" or "socket_path_taken",
  // kInvalidArgument "socket_path_too_long", kIoError by errno name.
  [[nodiscard]] static Result<std::unique_ptr<Acceptor>> Listen(
      EventLoop* loop, Log* log, const std::string& path, mode_t mode,
      std::function<void(UniqueFd)> accepted);
  // Removes the socket's file.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  Acceptor(EventLoop* loop, Log* log, std::string path, UniqueFd socket,
           std::function<void(UniqueFd)> accepted);
  void Wait();
  void AcceptAll();

  Log* const log_;
  const std::string path_;
  const UniqueFd socket_;
  const std::function<void(UniqueFd)> accepted_;
  Timer retry_;
  FdWatch watch_;
};

}  // namespace kvtier
