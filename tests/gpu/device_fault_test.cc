// SPDX-License-Identifier: Apache-2.0
// Faults that no copy can cure: a broken context, and memory that others hold.
#include <algorithm>

#include "tests/gpu/device_fixture.h"
#include "tools/bench/gpu/kernel/read_memory.h"

namespace kvtier {
namespace {

constexpr int kToldExitCode = 42;

class DeviceFaultTest : public CudaDeviceTest {
 protected:
  // Ends the process with kToldExitCode if the device tells of its broken context as it should.
  void BreakContextAndCopy() {
    int told = 0;
    OpenDevice({.on_fatal = [&told](const std::string& error) {
      if (error.find("cudaErrorIllegalAddress") != std::string::npos) ++told;
    }});
    const auto pool = MakePool(4 * kMiB);
    PinnedBuffer host(device_.get(), 4 * kMiB);
    // A client cannot do this to the daemon; a fault of the daemon's own kernels or of the GPU can.
    (void)ReadMemory(reinterpret_cast<const void*>(uintptr_t{64}), 16 * kMiB, nullptr, 1, nullptr);
    (void)cudaDeviceSynchronize();
    for (int i = 0; i < 3; ++i) {
      const Status status = CopyAndWait({.pool = pool.get(),
                                         .direction = CopyDirection::kHostToPool,
                                         .copies = {{0, host.data(), 4 * kMiB}}});
      if (status) std::_Exit(1);
    }
    loop_.RunPosted();
    std::_Exit(told == 1 ? kToldExitCode : 2);
  }
};

TEST_F(DeviceFaultTest, ABrokenContextFailsEveryCopyAndIsToldOnce) {
  // In a process of its own, since no other test could use this one's context afterwards.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(BreakContextAndCopy(), ::testing::ExitedWithCode(kToldExitCode), "");
}

TEST_F(DeviceFaultTest, TheDriverTellsWhoHoldsMemory) {
  OpenDevice();
  const auto pool = MakePool(256 * kMiB);
  PoolPeer peer(*pool, "churn", 1);
  ASSERT_TRUE(peer.WaitUntilReady());
  const std::optional<std::vector<VramHolder>> holders = VramHoldersOf(0);
  if (!holders) GTEST_SKIP() << "the driver does not tell";
  EXPECT_TRUE(std::ranges::any_of(
      *holders, [&](const VramHolder& holder) { return holder.pid == peer.pid(); }));
}

}  // namespace
}  // namespace kvtier
