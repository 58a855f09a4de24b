// SPDX-License-Identifier: Apache-2.0
// A daemon with two devices. Host memory twice: it behaves the same as with two GPUs.
#include "tests/integration/harness/daemon_test.h"
#include "tests/integration/harness/plain_client.h"

namespace kvtier {
namespace {

constexpr size_t kBlocks = 12;
constexpr const char* kTwoDevices = R"(pool.device=["host", "host"])";

class DevicesTest : public DaemonTest {
 protected:
  // Plays the prompt on a device; every byte that it is served is checked.
  ReplayReport PlayOn(uint32_t device, const TraceRequest& request) {
    ReplayTarget target;
    target.socket = daemon().socket();
    target.settle_admin_socket = daemon().admin_socket();
    target.block_bytes = kTestBlockBytes;
    target.device = device;
    auto client = ReplayClient::Connect(target, kTestBlockTokens);
    EXPECT_TRUE(client) << client.error().ToString();
    if (!client) return {};
    EXPECT_TRUE(client->Play(request));
    return client->Finish();
  }
  kvt::Connection ConnectPlainly() { return ConnectTo(daemon().socket()); }
};

TEST_F(DevicesTest, ClientsAreToldOfThem) {
  StartDaemon({}, {kTwoDevices, R"(pool.bytes=["1MiB", "2MiB"])"});
  const auto devices = ConnectPlainly().Devices();
  ASSERT_TRUE(devices) << devices.error().ToString();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[0].kind, KVT_DEVICE_HOST);
  EXPECT_EQ((*devices)[0].pool_bytes, 1 * kMiB);
  EXPECT_EQ((*devices)[1].pool_bytes, 2 * kMiB);
  EXPECT_NE(std::string((*devices)[1].name), "");
}

TEST_F(DevicesTest, WhatIsComputedOnOneIsServedOnTheOther) {
  StartDaemon({}, {kTwoDevices});
  EXPECT_EQ(PlayOn(0, Prompt("a", kBlocks)).blocks.miss, kBlocks);
  const ReplayReport other = PlayOn(1, Prompt("a", kBlocks));
  EXPECT_EQ(other.blocks.hit[static_cast<size_t>(Tier::kHost)], kBlocks);
  EXPECT_EQ(other.wrong_blocks, 0u);
  for (const uint32_t device : {0, 1}) {
    const ReplayReport again = PlayOn(device, Prompt("a", kBlocks));
    EXPECT_EQ(again.blocks.hit[static_cast<size_t>(Tier::kPool)], kBlocks);
    EXPECT_EQ(again.wrong_blocks, 0u);
  }
}

TEST_F(DevicesTest, BothAreServedFromDiskAfterARestart) {
  StartDaemon({}, {kTwoDevices});
  EXPECT_EQ(PlayOn(1, Prompt("a", kBlocks)).blocks.miss, kBlocks);
  ASSERT_EQ(daemon().Terminate(), 0);
  StartDaemon({}, {kTwoDevices});
  for (const uint32_t device : {0, 1}) {
    const ReplayReport report = PlayOn(device, Prompt("a", kBlocks));
    EXPECT_EQ(report.blocks.miss, 0u);
    EXPECT_EQ(report.wrong_blocks, 0u);
  }
}

TEST_F(DevicesTest, WhoDoesNotSayWhichIsAskedTo) {
  StartDaemon({}, {kTwoDevices});
  kvt::Connection connection = ConnectPlainly();
  const uint32_t model = RegisterTinyModel(&connection);
  const auto any = connection.Attach(model);
  ASSERT_FALSE(any);
  EXPECT_EQ(any.error().reason, "device_ambiguous");
  const auto third = connection.Attach(model, 0, 2);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().reason, "unknown_device");
  EXPECT_TRUE(connection.Attach(model, 0, 1));
}

TEST_F(DevicesTest, TheOnlyOneNeedsNoName) {
  StartDaemon();
  kvt::Connection connection = ConnectPlainly();
  EXPECT_TRUE(connection.Attach(RegisterTinyModel(&connection), 0, KVT_ANY_DEVICE));
}

TEST_F(DevicesTest, StatusShowsEach) {
  StartDaemon({}, {kTwoDevices});
  (void)PlayOn(0, Prompt("a", kBlocks));
  (void)PlayOn(1, Prompt("a", kBlocks));
  const boost::json::value document = Admin("status");
  const boost::json::array& devices = document.at("devices").as_array();
  ASSERT_EQ(devices.size(), 2u);
  for (size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i].at("kind"), "host");
    EXPECT_GT(devices[i].at("pool_used_bytes").to_number<uint64_t>(), 0u);
    EXPECT_EQ(document.at("pools").at(i).at("device"), i);
    EXPECT_EQ(document.at("kernels").at("devices").at(i).at("state"), "ready");
  }
  EXPECT_EQ(document.at("kernels").at("state"), "ready");
  const ProgramResult shown = Ctl({"status"});
  EXPECT_EQ(shown.exit_code, 0) << shown.errors;
  EXPECT_NE(shown.output.find("2 devices"), std::string::npos) << shown.output;
}

}  // namespace
}  // namespace kvtier
