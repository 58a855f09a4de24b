// SPDX-License-Identifier: Apache-2.0
#include "client/core/device_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvtier::client {
namespace {

using Devices = std::vector<wire::DevicesReply::Device>;

DeviceUuid Uuid(uint8_t byte) {
  DeviceUuid uuid;
  uuid.fill(byte);
  return uuid;
}

wire::DevicesReply::Device Gpu(uint8_t byte) {
  return {.kind = wire::DeviceKind::kCuda, .uuid = Uuid(byte), .name = "gpu"};
}
wire::DevicesReply::Device Host() { return {.name = "host"}; }

// The device that the thread's CUDA context is on.
std::function<Result<DeviceUuid>()> Current(uint8_t byte) {
  return [byte]() -> Result<DeviceUuid> { return Uuid(byte); };
}
Result<DeviceUuid> NoCuda() { return MakeError(ErrorCode::kUnsupported, "no_cuda_driver"); }

std::string ReasonOf(const Result<uint32_t>& choice) {
  return choice ? "chosen" : choice.error().reason;
}

TEST(DeviceChoice, TheOnlyDeviceIsTakenWithoutAskingCuda) {
  const auto never = []() -> Result<DeviceUuid> {
    ADD_FAILURE() << "CUDA was asked";
    return NoCuda();
  };
  EXPECT_EQ(ChooseDevice(Devices{Host()}, {}, never), 0u);
  EXPECT_EQ(ChooseDevice(Devices{Gpu(1)}, {}, never), 0u);
}

TEST(DeviceChoice, OfSeveralTheCurrentGpuIsTakenWhereverItIsListed) {
  EXPECT_EQ(ChooseDevice(Devices{Gpu(1), Gpu(2)}, {}, Current(2)), 1u);
  EXPECT_EQ(ChooseDevice(Devices{Host(), Gpu(2), Gpu(1)}, {}, Current(1)), 2u);
}

TEST(DeviceChoice, WithoutACurrentGpuSomebodyMustChoose) {
  const Result<uint32_t> choice = ChooseDevice(Devices{Gpu(1), Gpu(2)}, {}, NoCuda);
  ASSERT_FALSE(choice);
  EXPECT_EQ(choice.error().reason, "device_ambiguous");
  EXPECT_NE(choice.error().context.find("0 (gpu), 1 (gpu)"), std::string::npos);
}

TEST(DeviceChoice, AGpuWithoutPoolsIsAnErrorNotAnotherGpuAndNamesTheKey) {
  const Result<uint32_t> choice = ChooseDevice(Devices{Gpu(1), Gpu(2)}, {}, Current(3));
  EXPECT_EQ(ReasonOf(choice), "device_not_served");
  ASSERT_FALSE(choice);
  EXPECT_NE(choice.error().context.find("pool.device"), std::string::npos);
}

TEST(DeviceChoice, HostMemoryIsNobodysGpu) {
  EXPECT_EQ(ReasonOf(ChooseDevice(Devices{Host(), Gpu(1)}, {}, Current(0))), "device_not_served");
}

TEST(DeviceChoice, TheGpuChosenBeforeIsTakenAgain) {
  EXPECT_EQ(ChooseDevice(Devices{Gpu(2), Gpu(1)}, Uuid(1), Current(2)), 1u);
  EXPECT_EQ(ReasonOf(ChooseDevice(Devices{Gpu(2)}, Uuid(1), Current(2))), "device_not_served");
}

}  // namespace
}  // namespace kvtier::client
