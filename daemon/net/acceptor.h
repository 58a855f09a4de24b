// SPDX-License-Identifier: Apache-2.0
// Listens on a path of the file system, by a Unix stream socket, or on a TCP port.
//
// The lock of the disk directory, not the socket at a path, keeps two daemons from using one disk;
// the socket only notices a live listener and refuses to replace it.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/config/endpoints.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"

namespace kvtier {

// Event loop only. It owns the listening socket and the socket's file; the connections that it
// accepts belong to the callback. It never gives up: when no descriptor is left it waits and tries
// again, while connections wait in the kernel's backlog.
class Acceptor {
 public:
  // Asks what Listen would meet, beside a daemon that listens there, too, and makes nothing.
  // `makes_directory`: the one around `path` is made first, if it is missing. Errors:
  // kAlreadyExists "socket_path_taken", kInvalidArgument "socket_path_too_long", kIoError by errno
  // name.
  [[nodiscard]] static Status CheckPath(const std::string& path, bool makes_directory);
  // The same as CheckPath where no other process may listen. A process that is ending is waited for
  // as long as `until` allows, and so is one that takes no connections, since it may be ending.
  // Errors: those of CheckPath, and kAlreadyExists "socket_in_use".
  [[nodiscard]] static Status CheckFree(
      const std::string& path,
      std::chrono::steady_clock::time_point until = std::chrono::steady_clock::now());
  // The same as CheckPath of ListenOnPort. Errors: kIoError by errno name.
  [[nodiscard]] static Status CheckPort(const ListenAddress& address);
  // Binds `path` with file mode `mode` and begins to accept. A socket that no process
  // listens on any more is replaced. `accepted` gets each connection, non-blocking and
  // close-on-exec. Without `descriptors` the kernel refuses those that peers want to send along
  // (EPERM for them) until PassDescriptors, where it can (Linux 6.16). `loop` and `log` are
  // borrowed. Errors: those of CheckFree and SetMode.
  [[nodiscard]] static Result<std::unique_ptr<Acceptor>> Listen(
      EventLoop* loop, Log* log, const std::string& path, mode_t mode, bool descriptors,
      std::function<void(UniqueFd)> accepted);
  // Gives a socket's file its mode. Users who may write to the directory can put another file or a
  // link in its place: that stays as it is. Errors: kIoError by errno name.
  [[nodiscard]] static Status SetMode(const std::string& path, mode_t mode);
  // The same on a port. The kernel ends a connection when its peer has been silent for half a
  // minute. Errors: kIoError by errno name.
  [[nodiscard]] static Result<std::unique_ptr<Acceptor>> ListenOnPort(
      EventLoop* loop, Log* log, const ListenAddress& address,
      std::function<void(UniqueFd)> accepted);
  // Removes the socket's file, so that clients that come later get ENOENT and not a refused
  // connection.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Also where the kernel chose it. REQUIRES: made by ListenOnPort.
  [[nodiscard]] uint16_t port() const;

 private:
  Acceptor(EventLoop* loop, Log* log, std::string path, UniqueFd socket, bool descriptors,
           std::function<void(UniqueFd)> accepted);
  void Wait();
  // Takes waiting connections, a bounded number per event, then waits again.
  void AcceptAll();

  Log* const log_;
  const std::string path_;  // empty: a port
  UniqueFd socket_;
  struct stat file_ {};  // at the path
  const bool descriptors_;
  const std::function<void(UniqueFd)> accepted_;
  Timer retry_;
  std::optional<FdWatch> watch_;  // goes before the socket
};

}  // namespace kvtier
