// SPDX-License-Identifier: Apache-2.0
// The base of tests that run a real daemon with small tiers in a directory of their own.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "tests/integration/harness/program.h"
#include "tools/replay/replay_client.h"
#include "tools/support/json_view.h"
#include "tools/support/private_daemon.h"
#include "tools/support/temporary_directory.h"

namespace kvtier {

// Sizes in blocks of kTestBlockBytes.
struct TierSizes {
  uint64_t pool_blocks = 64;
  uint64_t host_blocks = 128;  // 0: as the configuration file says
  // 0: no disk tier, or as the configuration file says where that gives the size of host.
  uint64_t disk_blocks = 1024;
};

// Switches the web pages on, on a port that is free.
inline constexpr const char* kMetricsSetting = "metrics.listen=127.0.0.1:0";

inline constexpr uint64_t kTestBlockBytes = 16 * kKiB;
inline constexpr uint32_t kTestBlockTokens = 16;
// A slot is a block and its 4 KiB header; a slab holds three of them beside its own header.
inline constexpr uint64_t kTestSlabBytes = 64 * kKiB;
inline constexpr uint64_t kTestSlotsPerSlab = 3;

// How long an acquire waits until blocks that must leave the pool for it have been copied. A busy
// machine takes longer than the default for it, and stored blocks would be dropped; a client's
// request may last longer.
inline constexpr int kTestMaxWaitMs = 30'000;

// Settings that give a daemon tiers of these sizes.
[[nodiscard]] std::vector<std::string> SettingsOf(const TierSizes& sizes);

// Asks again until it holds. A test that is wrong takes a minute to say so.
[[nodiscard]] bool Eventually(const std::function<bool()>& holds);

class DaemonTest : public testing::Test {
 protected:
  void SetUp() override;
  // Fails the test if the daemon's log tells of a failed check or a sanitizer's finding.
  void TearDown() override;

  // Starts (or starts again) a daemon in the test's directory: the build's, if no program is named,
  // which keeps nothing in memory over a restart unless the settings say so. Fails the test if it
  // does not come.
  void StartDaemon(const TierSizes& sizes = {}, std::vector<std::string> more_settings = {},
                   const std::string& config_file = "", const std::string& program = "");
  [[nodiscard]] PrivateDaemon& daemon() { return *daemon_; }
  [[nodiscard]] std::string directory() const { return directory_->path(); }

  // A new client; fails the test if it cannot connect.
  [[nodiscard]] std::unique_ptr<ReplayClient> Connect();
  // A request for `blocks` blocks; equal names are equal prefixes.
  [[nodiscard]] static TraceRequest Prompt(const std::string& name, size_t blocks);
  // Plays `request` with a client of its own and waits until the daemon is at rest.
  [[nodiscard]] ReplayReport Play(const TraceRequest& request);

  // kvtierctl with this daemon's socket.
  [[nodiscard]] ProgramResult Ctl(std::vector<std::string> arguments);
  // Where the daemon's web pages are, for example "http://127.0.0.1:43210/". REQUIRES: started with
  // kMetricsSetting.
  [[nodiscard]] std::string MetricsUrl();
  // The log of all daemons of this directory. A line may come a moment after its cause.
  [[nodiscard]] std::string Log();
  // The reply of an admin operation.
  [[nodiscard]] boost::json::value Admin(const std::string& operation);

 private:
  std::optional<TemporaryDirectory> directory_;
  std::optional<PrivateDaemon> daemon_;
};

}  // namespace kvtier
