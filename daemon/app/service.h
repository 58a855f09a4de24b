// SPDX-License-Identifier: Apache-2.0
// kvtierd as a service: the loop, the log, signals, and what systemd wants to know.
//
//   SIGTERM, SIGINT  drain, then end; a second one ends at once
//   SIGHUP           read the configuration again
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "daemon/app/config_reader.h"
#include "daemon/app/daemon.h"
#include "daemon/config/config.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/supervision.h"

namespace kvtier {

// sysexits.h's EX_CONFIG: systemd is told not to restart on it.
inline constexpr int kExitConfiguration = 78;
inline constexpr int kExitFailure = 1;
// EX_TEMPFAIL: ended in order, to be started again with a disk tier that there is by now.
inline constexpr int kExitAgain = 75;

// The exit code for a start that failed. A service manager tries again at once and for ever, so
// that this waits for some seconds first where there is one.
[[nodiscard]] int ExitCodeOfFailedStart(const Error& error);

// Main thread only, which is the loop's thread. Made once per process: it sets the process's umask,
// signal dispositions and descriptor limit. The members' order matters: the daemon goes before the
// loop, the loop before the log.
class Service {
 public:
  // `read_again` reads the configuration anew, on another thread; it owns all that it uses.
  // `ready_text`, for people, is printed once the daemon serves. REQUIRES: `config` passed
  // CheckConfig.
  Service(const Config& config, std::function<Result<Config>()> read_again,
          std::string ready_text = {});
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Starts the daemon, serves until it is told to stop, and returns the process's exit code: 0
  // after a clean end, kExitAgain after one that a start is to follow, kExitConfiguration if only
  // another configuration can help, kExitFailure otherwise.
  [[nodiscard]] int Run();

 private:
  void OnSignal(int signal);
  // Takes over the configuration that was read, or logs the reason why not.
  void Reload(const Result<Config>& wanted);
  // The first call begins the drain; the second ends the process without it, for an operator who
  // cannot wait. The disk tier is consistent after either.
  void Stop(int signal);
  // The disk that the start had to do without is there: ends, if a service manager starts it again.
  void OnDiskBack();
  void StartHeartbeats();
  [[nodiscard]] std::string StatusLine() const;

  Log log_;
  ServiceManager manager_;
  EventLoop loop_;
  ConfigReader reader_;
  SocketPeerInspector peers_;
  Daemon daemon_;
  Heartbeat watchdog_;
  Heartbeat status_;
  const std::string ready_text_;
  bool stopping_ = false;
  int exit_code_ = 0;
};

}  // namespace kvtier
