// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/harness/two_hosts_test.h"

#include <utility>

#include "tools/support/admin.h"

namespace kvtier {

std::vector<std::string> TwoHostsTest::Settings() const {
  std::vector<std::string> settings = StoreSettings();
  for (const char* const setting :
       {"cold.after=0s", "cold.lookup_deadline_ms=60000", "cold.read_deadline_ms=60000"}) {
    settings.emplace_back(setting);
  }
  return settings;
}

void TwoHostsTest::StartOtherHost(const std::vector<std::string>& more_settings) {
  PrivateDaemonOptions options;
  options.program = KvtierdPath();
  options.settings = {"pool.device=host"};
  for (const auto& part : {SettingsOf({}), Settings(), more_settings}) {
    options.settings.insert(options.settings.end(), part.begin(), part.end());
  }
  auto daemon = PrivateDaemon::Start(std::move(options));
  ASSERT_TRUE(daemon) << daemon.error().ToString();
  other_.emplace(std::move(*daemon));
}

ReplayReport TwoHostsTest::PlayOnOther(const TraceRequest& request) {
  ReplayTarget target;
  target.socket = other_->socket();
  target.settle_admin_socket = other_->admin_socket();
  target.block_bytes = kTestBlockBytes;
  auto client = ReplayClient::Connect(target, kTestBlockTokens);
  EXPECT_TRUE(client) << client.error().ToString();
  if (!client) return {};
  const Status played = client->Play(request);
  EXPECT_TRUE(played) << played.error().ToString();
  return client->Finish();
}

boost::json::value TwoHostsTest::Cold(const std::string& admin_socket) {
  const auto reply = CallAdmin(admin_socket, R"({"op":"status"})", 60'000);
  EXPECT_TRUE(reply) << reply.error().ToString();
  return reply ? boost::json::parse(*reply).at("cold") : boost::json::value();
}

uint64_t TwoHostsTest::FailedReads(const std::string& reason) {
  return Cold(other_->admin_socket()).at("failed_reads").at(reason).to_number<uint64_t>();
}

void TwoHostsTest::WriteByFirstHost() {
  StartDaemon({}, Settings());
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u);
  // More than the pool has: the first leave it for host.
  EXPECT_EQ(Play(Prompt("others", 60)).wrong_blocks, 0u);
  EXPECT_EQ(Play(Prompt("more", 60)).wrong_blocks, 0u);
  ASSERT_TRUE(Eventually([this] { return CountObjects() >= kBlocks; }))
      << boost::json::serialize(Cold(daemon().admin_socket()));
}

void TwoHostsTest::AwaitAnswerToOtherHost() {
  int asked = 0;
  EXPECT_TRUE(Eventually([this, &asked] {
    EXPECT_EQ(PlayOnOther(Prompt("asked " + std::to_string(++asked), 1)).wrong_blocks, 0u);
    return Cold(other_->admin_socket()).at("lookups").at("absent").to_number<uint64_t>() > 0;
  })) << "the store answers";
}

void TwoHostsTest::ReadByOtherHostFrom(size_t blocks) {
  AwaitAnswerToOtherHost();
  uint64_t read_blocks = 0;
  for (; blocks <= kBlocks && read_blocks == 0; ++blocks) {
    EXPECT_EQ(PlayOnOther(Prompt("shared", blocks)).wrong_blocks, 0u);
    read_blocks = Cold(other_->admin_socket()).at("read_blocks").to_number<uint64_t>();
  }
  EXPECT_GT(read_blocks, 0u) << boost::json::serialize(Cold(other_->admin_socket()));
}

}  // namespace kvtier
