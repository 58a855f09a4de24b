// SPDX-License-Identifier: Apache-2.0
// What systemd is told about the process, through sd_notify. Without systemd (NOTIFY_SOCKET is not
// set) every call does nothing.
#pragma once

#include <cstdint>
#include <string>

namespace kvtier {

// Event loop's thread, or the time before it runs. Calls do not block: systemd's socket is a
// datagram socket, and a message it cannot take is lost.
class ServiceManager {
 public:
  // Initialisation goes on for up to `ms` from now: systemd's start time-out is put off so far.
  void ExtendStart(const std::string& status, int64_t ms);
  void Ready(const std::string& status);
  // To be followed by Ready, whatever came of the reload.
  void Reloading();
  // The end has begun and may take `ms` from now; repeated calls put the stop time-out off.
  void Stopping(const std::string& status, int64_t ms);
  // A line for `systemctl status`; sent only when it differs from the last.
  void Status(const std::string& status);
  // The watchdog's sign of life.
  void Alive();

  // Within which time systemd wants signs of life (WatchdogSec=), in ms; 0 means that it does not.
  [[nodiscard]] static int64_t WatchdogMs();

 private:
  std::string last_status_;
};

}  // namespace kvtier
