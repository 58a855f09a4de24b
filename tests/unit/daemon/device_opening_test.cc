// SPDX-License-Identifier: Apache-2.0
// The choice of devices, with GPUs that are none, and how they are opened.
#include "daemon/resources/device_opening.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "daemon/config/config_schema.h"
#include "tests/fakes/fake_gpus.h"

namespace kvtier {
namespace {

// The opened devices, and the log meanwhile.
struct Opening {
  std::unique_ptr<Log> writer;  // devices that are opened later tell it
  Result<OpenedDevices> opened = OpenedDevices{};
  std::string log;

  [[nodiscard]] OpenedDevice& first() { return opened->all.front(); }
};

class DeviceOpeningTest : public ::testing::Test {
 protected:
  Opening Open(std::vector<DeviceChoice> choices, const FakeGpus& gpus) {
    config_.pool.devices = std::move(choices);
    testing::internal::CaptureStderr();
    Opening opening;
    opening.writer = std::make_unique<Log>(config_.log);
    opening.opened = OpenDevices(config_, {.gpus = &gpus,
                                           .loop = &loop_,
                                           .executor = &executor_,
                                           .log = opening.writer.get(),
                                           .memory = memory_,
                                           .kept_bytes = kept_bytes_,
                                           .patience = patience_});
    opening.writer->Flush();
    opening.log = testing::internal::GetCapturedStderr();
    return opening;
  }
  Opening Open(DeviceChoice choice) { return Open({choice}, no_gpus_); }

  static constexpr auto kSecond = static_cast<DeviceChoice>(int{2} + 1);

  Config config_;
  BlockingLoop loop_;
  ThreadExecutor executor_{"test", 1, &loop_};
  MachineMemory memory_ = ReadMachineMemory();
  std::function<uint64_t(const DeviceInfo&)> kept_bytes_;
  std::chrono::milliseconds patience_{0};
  const FakeGpus no_gpus_{0};
  const FakeGpus eight_{8};
};

TEST_F(DeviceOpeningTest, AllTakesHostMemoryWithoutAGpuAndSaysSo) {
  Opening opening = Open(DeviceChoice::kAll);
  ASSERT_TRUE(opening.opened) << opening.opened.error().ToString();
  EXPECT_EQ(opening.first().kind, wire::DeviceKind::kHost);
  EXPECT_EQ(opening.first().device->info().kind, "host");
  EXPECT_EQ(opening.first().reason, "all: no GPU can be used: a fake without any");
  EXPECT_NE(opening.log.find(" I device.chosen: host: "), std::string::npos) << opening.log;
  EXPECT_NE(opening.log.find(opening.first().reason), std::string::npos) << opening.log;
}

TEST_F(DeviceOpeningTest, AllServesEveryGpuAndOpensNone) {
  Opening opening = Open({DeviceChoice::kAll}, eight_);
  ASSERT_TRUE(opening.opened) << opening.opened.error().ToString();
  ASSERT_EQ(opening.opened->all.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    const OpenedDevice& device = opening.opened->all[static_cast<size_t>(i)];
    EXPECT_EQ(device.device->info().ordinal, i);
    EXPECT_EQ(device.kind, wire::DeviceKind::kCuda);
    EXPECT_FALSE(device.device->is_open());
    EXPECT_EQ(device.pool_bytes, config_.cache.pool_bytes);
  }
  EXPECT_TRUE(eight_.opened().empty());
}

TEST_F(DeviceOpeningTest, OnlyTheGpuThatAClientWantsIsOpened) {
  Opening opening = Open({DeviceChoice::kAll}, eight_);
  std::optional<Status> opened;
  opening.opened->all[5].device->WhenOpen([&](const Status& outcome) { opened = outcome; });
  loop_.RunUntil([&] { return opened.has_value(); });
  EXPECT_TRUE(*opened);
  EXPECT_EQ(eight_.opened(), std::vector{5});
}

TEST_F(DeviceOpeningTest, AGpuWithPoolsOfAnEarlierDaemonIsOpenedAtOnce) {
  kept_bytes_ = [](const DeviceInfo& info) { return info.ordinal == 2 ? kGiB : uint64_t{0}; };
  EXPECT_TRUE(Open({DeviceChoice::kAll}, eight_).opened);
  EXPECT_EQ(eight_.opened(), std::vector{2});
}

// Host, disk and the other GPUs serve, and this one may be opened for its next client.
TEST_F(DeviceOpeningTest, AGpuWithPoolsOfAnEarlierDaemonThatCannotBeOpenedBeginsWithoutThem) {
  kept_bytes_ = [](const DeviceInfo& info) { return info.ordinal == 2 ? kGiB : uint64_t{0}; };
  FakeGpus full(8);
  full.RefuseToOpen(1);
  Opening opening = Open({DeviceChoice::kAll}, full);
  ASSERT_TRUE(opening.opened) << opening.opened.error().ToString();
  EXPECT_EQ(opening.opened->all.size(), 8u);
  EXPECT_FALSE(opening.opened->all[2].device->is_open());
  EXPECT_NE(opening.log.find(" W device.not_opened: cuda:2: "), std::string::npos) << opening.log;
}

TEST_F(DeviceOpeningTest, AGpuThatTheLastDaemonIsAboutToLeaveIsTriedAgain) {
  kept_bytes_ = [](const DeviceInfo&) { return kGiB; };
  patience_ = std::chrono::minutes(1);
  FakeGpus left_late(1);
  left_late.RefuseToOpen(3);
  Opening opening = Open({DeviceChoice::kAll}, left_late);
  ASSERT_TRUE(opening.opened) << opening.opened.error().ToString();
  EXPECT_TRUE(opening.first().device->is_open());
  EXPECT_EQ(opening.log.find("device.not_opened"), std::string::npos) << opening.log;
}

// Memory that an engine lends is none of the daemon's, and engines may have taken all there is.
TEST_F(DeviceOpeningTest, MemoryThatOthersHoldIsNoReasonNotToServeAGpu) {
  config_.cache.pool_bytes = 70 * kGiB;
  EXPECT_TRUE(Open({DeviceChoice::kAll}, eight_).opened);
  Opening named = Open({kSecond}, eight_);
  ASSERT_TRUE(named.opened) << named.opened.error().ToString();
  EXPECT_EQ(named.first().pool_bytes, 70 * kGiB);
  EXPECT_NE(named.log.find(" W device.degraded: pools of cuda:1 may take 70.0 GiB, and 60.0 GiB "
                           "are free now; held by pid 4711 (20.0 GiB)"),
            std::string::npos)
      << named.log;
}

TEST_F(DeviceOpeningTest, MoreThanAGpuHasIsRefusedAndSoIsLessThanAPiece) {
  config_.cache.pool_bytes = 81 * kGiB;
  EXPECT_EQ(Open({kSecond}, eight_).opened.error().reason, "pool_exceeds_vram");
  config_.cache.pool_bytes = 1 * kMiB;
  EXPECT_EQ(Open({kSecond}, eight_).opened.error().reason, "pool_below_granule");
}

TEST_F(DeviceOpeningTest, AFractionOfAGpuCountsWhatEarlierPoolsHave) {
  config_.pool.free_fraction = 0.5;
  kept_bytes_ = [](const DeviceInfo&) { return 10 * kGiB; };
  Opening opening = Open({kSecond}, eight_);
  ASSERT_TRUE(opening.opened);
  EXPECT_EQ(opening.first().pool_bytes, 35 * kGiB);
}

// The driver tells of the whole GPU whose slice the device is.
TEST_F(DeviceOpeningTest, AFractionIsOfNoMoreThanAGpuHas) {
  config_.pool.free_fraction = 0.5;
  FakeGpus slices(2);
  slices.SetFree(600 * kGiB);
  Opening opening = Open({kSecond}, slices);
  ASSERT_TRUE(opening.opened) << opening.opened.error().ToString();
  EXPECT_EQ(opening.first().pool_bytes, 40 * kGiB);
}

TEST_F(DeviceOpeningTest, APoolThatNoMemoryCanHoldIsRefusedAtTheStart) {
  config_.cache.pool_bytes = uint64_t{100} << 40;
  Opening opening = Open(DeviceChoice::kHost);
  ASSERT_FALSE(opening.opened);
  EXPECT_EQ(opening.opened.error().reason, "pool_exceeds_memory");
}

TEST_F(DeviceOpeningTest, PoolsAndHostTierThatExceedTheMemoryTogetherAreWarnedOf) {
  config_.host.bytes = uint64_t{100} << 40;
  Opening opening = Open(DeviceChoice::kHost);
  EXPECT_TRUE(opening.opened);
  EXPECT_NE(opening.log.find(" W memory.short: "), std::string::npos) << opening.log;
}

TEST_F(DeviceOpeningTest, AControlGroupsLimitCountsAndIsNamed) {
  memory_ = {.total_bytes = 64 * kMiB, .available_bytes = 64 * kMiB, .limited_by = "/kvtier"};
  config_.cache.pool_bytes = 48 * kMiB;
  config_.host.bytes = 32 * kMiB;
  Opening opening = Open(DeviceChoice::kHost);
  ASSERT_TRUE(opening.opened);
  EXPECT_NE(opening.log.find("the control group /kvtier allows 64.0 MiB"), std::string::npos)
      << opening.log;
  config_.cache.pool_bytes = 65 * kMiB;
  EXPECT_EQ(Open(DeviceChoice::kHost).opened.error().reason, "pool_exceeds_memory");
}

TEST_F(DeviceOpeningTest, WhatFitsTheMemoryIsNotWarnedOf) {
  memory_ = {.total_bytes = 64 * kMiB, .available_bytes = 64 * kMiB, .limited_by = {}};
  config_.cache.pool_bytes = 32 * kMiB;
  config_.host.bytes = 32 * kMiB;
  EXPECT_EQ(Open(DeviceChoice::kHost).log.find("memory.short"), std::string::npos);
}

TEST_F(DeviceOpeningTest, AGpuThatIsNotThereIsAnErrorNotHostMemory) {
  Opening opening = Open(DeviceChoice::kCuda);
  ASSERT_FALSE(opening.opened);
  EXPECT_EQ(opening.opened.error().reason, "no_cuda");
  EXPECT_EQ(opening.log, "");
}

TEST_F(DeviceOpeningTest, HostMemoryIsTakenWhenAskedFor) {
  config_.cache.pool_bytes = 3 * kMiB + 1;
  Opening opening = Open(DeviceChoice::kHost);
  ASSERT_TRUE(opening.opened);
  EXPECT_EQ(opening.first().kind, wire::DeviceKind::kHost);
  EXPECT_EQ(opening.first().pool_bytes, 3 * kMiB + 1);
  EXPECT_EQ(opening.first().reason, "configured");
}

TEST_F(DeviceOpeningTest, AFractionIsOfWhatIsFree) {
  config_.pool.free_fraction = 0.25;
  Opening opening = Open(DeviceChoice::kHost);
  ASSERT_TRUE(opening.opened);
  const uint64_t free_bytes = opening.first().device->info().free_bytes;
  EXPECT_GT(opening.first().pool_bytes, 0u);
  // Other processes come and go between the two looks.
  EXPECT_NEAR(static_cast<double>(opening.first().pool_bytes),
              0.25 * static_cast<double>(free_bytes), 0.1 * static_cast<double>(free_bytes));
}

TEST(DeviceChoiceNameTest, NamesAreThoseOfTheConfiguration) {
  EXPECT_EQ(DeviceChoiceName(DeviceChoice::kAll), "all");
  EXPECT_EQ(DeviceChoiceName(DeviceChoice::kHost), "host");
  EXPECT_EQ(DeviceChoiceName(DeviceChoice::kCuda), "cuda:0");
  EXPECT_EQ(DeviceChoiceName(static_cast<DeviceChoice>(2 + 15)), "cuda:15");
}

}  // namespace
}  // namespace kvtier
