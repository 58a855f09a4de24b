// SPDX-License-Identifier: Apache-2.0
// systemd's end of sd_notify.
#pragma once

#include <string>

#include "base/posix.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {

// While it lives, sd_notify of this process and of those that it starts comes here.
class NotifySocket {
 public:
  NotifySocket();
  ~NotifySocket();
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  // The next message; empty if none comes within `timeout_ms`.
  [[nodiscard]] std::string Receive(int timeout_ms = 60'000);
  // Messages up to the first that contains `text`, which it returns; empty if none comes.
  [[nodiscard]] std::string ReceiveUntil(const std::string& text);

 private:
  TestDirectory directory_;
  UniqueFd socket_;
};

}  // namespace kvtier
