// SPDX-License-Identifier: Apache-2.0
// The choice of the device, on a machine without a GPU.
#include "daemon/resources/device_opening.h"

#include <gtest/gtest.h>

#include <string>

#include "base/executor.h"
#include "daemon/config/config_schema.h"
#include "gpu/cuda_device.h"

namespace kvtier {
namespace {

// Opens what `choice` names, and what the log said meanwhile.
struct Opening {
  Result<OpenedDevice> opened = OpenedDevice{};
  std::string log;
};

class DeviceOpeningTest : public ::testing::Test {
 protected:
  Opening Open(DeviceChoice choice) {
    config_.pool.devices = {choice};
    testing::internal::CaptureStderr();
    Opening opening;
    {
      Log log(config_.log);
      Result<std::vector<OpenedDevice>> all =
          OpenDevices(config_, clock_, &loop_, &log, memory_, {});
      if (all) {
        EXPECT_EQ(all->size(), 1u);
        opening.opened = std::move(all->front());
      } else {
        opening.opened = tl::unexpected(all.error());
      }
    }
    opening.log = testing::internal::GetCapturedStderr();
    return opening;
  }
  static bool HasGpu() { return FindCudaDevices().value().devices > 0; }

  Config config_;
  SystemClock clock_;
  BlockingLoop loop_;
  MachineMemory memory_ = ReadMachineMemory();
};

TEST_F(DeviceOpeningTest, AutoTakesHostMemoryWithoutAGpuAndSaysSo) {
  if (HasGpu()) GTEST_SKIP() << "this machine has a GPU";
  const Opening opening = Open(DeviceChoice::kAuto);
  ASSERT_TRUE(opening.opened) << opening.opened.error().ToString();
  EXPECT_EQ(opening.opened->kind, wire::DeviceKind::kHost);
  EXPECT_EQ(opening.opened->device->info().kind, "host");
  EXPECT_TRUE(opening.opened->reason.starts_with("auto: no GPU can be used: "));
  EXPECT_NE(opening.log.find(" I device.chosen: host: "), std::string::npos) << opening.log;
  EXPECT_NE(opening.log.find(opening.opened->reason), std::string::npos) << opening.log;
}

TEST_F(DeviceOpeningTest, APoolThatNoMemoryCanHoldIsRefusedAtTheStart) {
  config_.cache.pool_bytes = uint64_t{100} << 40;
  const Opening opening = Open(DeviceChoice::kHost);
  ASSERT_FALSE(opening.opened);
  EXPECT_EQ(opening.opened.error().reason, "pool_exceeds_memory");
}

TEST_F(DeviceOpeningTest, PoolsAndHostTierThatExceedTheMemoryTogetherAreWarnedOf) {
  config_.host.bytes = uint64_t{100} << 40;
  const Opening opening = Open(DeviceChoice::kHost);
  EXPECT_TRUE(opening.opened);
  EXPECT_NE(opening.log.find(" W memory.short: "), std::string::npos) << opening.log;
}

TEST_F(DeviceOpeningTest, AControlGroupsLimitCountsAndIsNamed) {
  memory_ = {.total_bytes = 64 * kMiB, .available_bytes = 64 * kMiB, .limited_by = "/kvtier"};
  config_.cache.pool_bytes = 48 * kMiB;
  config_.host.bytes = 32 * kMiB;
  const Opening opening = Open(DeviceChoice::kHost);
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
  if (HasGpu()) GTEST_SKIP() << "this machine has a GPU";
  const Opening opening = Open(DeviceChoice::kCuda);
  ASSERT_FALSE(opening.opened);
  EXPECT_EQ(opening.opened.error().reason, "no_cuda");
  EXPECT_EQ(opening.log, "");
}

TEST_F(DeviceOpeningTest, HostMemoryIsTakenWhenAskedFor) {
  config_.cache.pool_bytes = 3 * kMiB + 1;
  const Opening opening = Open(DeviceChoice::kHost);
  ASSERT_TRUE(opening.opened);
  EXPECT_EQ(opening.opened->kind, wire::DeviceKind::kHost);
  EXPECT_EQ(opening.opened->pool_bytes, 3 * kMiB + 1);
  EXPECT_EQ(opening.opened->reason, "configured");
}

TEST_F(DeviceOpeningTest, AFractionIsOfWhatIsFree) {
  config_.pool.free_fraction = 0.25;
  const Opening opening = Open(DeviceChoice::kHost);
  ASSERT_TRUE(opening.opened);
  const uint64_t free_bytes = opening.opened->device->info().free_bytes;
  EXPECT_GT(opening.opened->pool_bytes, 0u);
  // Other processes come and go between the two looks.
  EXPECT_NEAR(static_cast<double>(opening.opened->pool_bytes),
              0.25 * static_cast<double>(free_bytes), 0.1 * static_cast<double>(free_bytes));
}

TEST(DeviceChoiceNameTest, NamesAreThoseOfTheConfiguration) {
  EXPECT_EQ(DeviceChoiceName(DeviceChoice::kAuto), "auto");
  EXPECT_EQ(DeviceChoiceName(DeviceChoice::kHost), "host");
  EXPECT_EQ(DeviceChoiceName(DeviceChoice::kCuda), "cuda:0");
  EXPECT_EQ(DeviceChoiceName(static_cast<DeviceChoice>(2 + 15)), "cuda:15");
}

}  // namespace
}  // namespace kvtier
