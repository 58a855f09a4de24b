// SPDX-License-Identifier: Apache-2.0
// The errors of a machine without a GPU, or of a build without CUDA, when it is asked for one.
#include <gtest/gtest.h>

#include "base/executor.h"
#include "gpu/cuda_device.h"

namespace kvtier {
namespace {

class CudaAbsenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto presence = FindCudaDevices();
    ASSERT_TRUE(presence) << presence.error().ToString();
    if (presence->devices > 0) GTEST_SKIP() << "this machine has a GPU";
  }
};

TEST_F(CudaAbsenceTest, SaysWhyThereIsNone) { EXPECT_NE(FindCudaDevices()->why_none, ""); }

TEST_F(CudaAbsenceTest, OpeningOneFailsWithTheReason) {
  BlockingLoop loop;
  const auto device = OpenCudaDevice({}, &loop);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(device.error().reason, "no_cuda");
  EXPECT_EQ(device.error().context, FindCudaDevices()->why_none);
}

// Another answer than that no process holds any.
TEST_F(CudaAbsenceTest, WhoHoldsItsMemoryIsNotTold) {
  EXPECT_EQ(VramHoldersOf(0), std::nullopt);
  EXPECT_EQ(HoldsVramOf(0, 1), std::nullopt);
}

}  // namespace
}  // namespace kvtier
