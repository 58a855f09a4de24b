// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/harness/daemon_test.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "base/bytes.h"
#include "base/digest.h"
#include "tools/support/admin.h"

namespace kvtier {
namespace {

constexpr int64_t kAdminSilenceMs = 60'000;

uint64_t TierBytes(uint64_t blocks) {
  return (blocks + kTestSlotsPerSlab - 1) / kTestSlotsPerSlab * kTestSlabBytes;
}

}  // namespace

std::vector<std::string> SettingsOf(const TierSizes& sizes) {
  std::vector<std::string> settings = {
      fmt::format("pool.bytes={}B", sizes.pool_blocks * kTestBlockBytes),
      fmt::format("cache.slab_bytes={}B", kTestSlabBytes),
      "disk.free_floor_bytes=0B",
      fmt::format("cache.max_wait_ms={}", kTestMaxWaitMs),
  };
  if (sizes.host_blocks > 0) {
    settings.push_back(fmt::format("host.bytes={}B", TierBytes(sizes.host_blocks)));
  }
  if (sizes.host_blocks > 0 || sizes.disk_blocks > 0) {
    settings.push_back(fmt::format("disk.bytes={}B", TierBytes(sizes.disk_blocks)));
  }
  return settings;
}

bool Eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

void DaemonTest::SetUp() {
  auto directory = TemporaryDirectory::Create();
  ASSERT_TRUE(directory) << directory.error().ToString();
  directory_.emplace(std::move(*directory));
}

void DaemonTest::TearDown() {
  if (!daemon_) return;
  const std::string log = Log();
  for (const char* alarm : {"check failed", "Sanitizer", "runtime error"}) {
    EXPECT_EQ(log.find(alarm), std::string::npos) << log;
  }
  if (HasFailure()) std::cerr << "the daemon's log:\n" << log;
}

std::string DaemonTest::Log() {
  std::ifstream file(daemon().log_path());
  std::ostringstream log;
  log << file.rdbuf();
  return std::move(log).str();
}

void DaemonTest::StartDaemon(const TierSizes& sizes, std::vector<std::string> more_settings,
                             const std::string& config_file, const std::string& program) {
  PrivateDaemonOptions options;
  options.config_file = config_file;
  options.program = program.empty() ? KvtierdPath() : program;
  options.directory = directory();
  // The same on every machine; what needs a GPU has tests of its own.
  options.settings = {"pool.device=host"};
  const std::vector<std::string> size_settings = SettingsOf(sizes);
  options.settings.insert(options.settings.end(), size_settings.begin(), size_settings.end());
  options.settings.insert(options.settings.end(), more_settings.begin(), more_settings.end());
  auto daemon = PrivateDaemon::Start(std::move(options));
  ASSERT_TRUE(daemon) << daemon.error().ToString();
  daemon_.emplace(std::move(*daemon));
}

std::unique_ptr<ReplayClient> DaemonTest::Connect() {
  ReplayTarget target;
  target.socket = daemon().socket();
  target.settle_admin_socket = daemon().admin_socket();
  target.block_bytes = kTestBlockBytes;
  auto client = ReplayClient::Connect(target, kTestBlockTokens);
  EXPECT_TRUE(client) << client.error().ToString();
  return client ? std::make_unique<ReplayClient>(std::move(*client)) : nullptr;
}

TraceRequest DaemonTest::Prompt(const std::string& name, size_t blocks) {
  TraceRequest request;
  request.input_tokens = static_cast<uint32_t>(blocks * kTestBlockTokens);
  for (uint64_t i = 0; i < blocks; ++i) {
    ByteWriter writer;
    writer.WriteString(name);
    writer.Write(i);
    request.hashes.push_back(Sha256(writer.data()));
  }
  return request;
}

ReplayReport DaemonTest::Play(const TraceRequest& request) {
  const auto client = Connect();
  if (client == nullptr) return {};
  const Status played = client->Play(request);
  EXPECT_TRUE(played) << played.error().ToString();
  return client->Finish();
}

ProgramResult DaemonTest::Ctl(std::vector<std::string> arguments) {
  std::vector<std::string> all = {KvtierctlPath(), "--socket", directory() + "/kvtier.sock"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return RunProgram(all);
}

std::string DaemonTest::MetricsUrl() {
  const std::string log = Log();
  const size_t begin = log.find("http://");
  if (begin == std::string::npos) {
    ADD_FAILURE() << "no web page: " << log;
    return "";
  }
  return log.substr(begin, log.find(' ', begin) - begin);
}

boost::json::value DaemonTest::Admin(const std::string& operation) {
  const auto reply = CallAdmin(daemon().admin_socket(), fmt::format(R"({{"op":"{}"}})", operation),
                               kAdminSilenceMs);
  EXPECT_TRUE(reply) << reply.error().ToString();
  return reply ? boost::json::parse(*reply) : boost::json::value();
}

}  // namespace kvtier
