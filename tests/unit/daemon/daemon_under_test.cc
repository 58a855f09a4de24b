// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/daemon_under_test.h"

#include "base/result.h"
#include "daemon/config/config_check.h"

namespace kvtier {
namespace {

Config Adjusted(const std::filesystem::path& directory,
                const std::function<void(Config*)>& adjust) {
  Config config = SmallConfig(directory);
  config.disk.bytes = 8 * kMiB;
  if (adjust) adjust(&config);
  KVT_CHECK(CheckConfig(config).has_value());
  return config;
}

}  // namespace

DaemonUnderTest::DaemonUnderTest(const std::filesystem::path& directory,
                                 const std::function<void(Config*)>& adjust)
    : config_(Adjusted(directory, adjust)),
      log_(config_.log),
      daemon_(std::make_unique<Daemon>(config_, &loop_, &log_, &peers, &manager_)),
      status_(daemon_->Start()) {
  if (status_) thread_ = std::thread([this] { loop_.Run(); });
}

DaemonUnderTest::~DaemonUnderTest() {
  if (!status_) return;
  loop_.Post([this] { daemon_->BeginShutdown([this] { loop_.Stop(); }); });
  thread_.join();
  KVT_CHECK(daemon_->idle());
}

}  // namespace kvtier
