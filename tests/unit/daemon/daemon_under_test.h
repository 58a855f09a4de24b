// SPDX-License-Identifier: Apache-2.0
// A whole daemon, from its configuration, its loop on a thread of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "daemon/app/daemon.h"
#include "daemon/config/config.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/supervision.h"
#include "tests/unit/daemon/server_under_test.h"

namespace kvtier {

class DaemonUnderTest {
 public:
  // Starts in `directory`, with SmallConfig and a disk tier of 8 MiB, both as adjusted. Whether it
  // came up is told by status().
  explicit DaemonUnderTest(const std::filesystem::path& directory,
                           const std::function<void(Config*)>& adjust = {});
  // Shuts it down as SIGTERM does, if it is up.
  ~DaemonUnderTest();
  DaemonUnderTest(const DaemonUnderTest&) = delete;
  DaemonUnderTest& operator=(const DaemonUnderTest&) = delete;

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] const std::string& socket() const { return config_.server.socket; }
  [[nodiscard]] const std::string& admin_socket() const { return config_.server.admin_socket; }

  DisguisedPeers peers;

 private:
  const Config config_;
  Log log_;
  EventLoop loop_;
  ServiceManager manager_;
  std::unique_ptr<Daemon> daemon_;
  Status status_;
  std::thread thread_;
};

}  // namespace kvtier
