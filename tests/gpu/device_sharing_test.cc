// SPDX-License-Identifier: Apache-2.0
// One pool, several processes.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/gpu/device_fixture.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kPoolBytes = 64 * kMiB;

class DeviceSharingTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    if (!IsSkipped()) OpenDevice();
  }
  std::vector<std::byte> BytesOf(uint64_t seed) {
    std::vector<std::byte> bytes(kPoolBytes);
    FillFromSeed(seed, bytes);
    return bytes;
  }
  Status CopyAll(DevicePool* pool, CopyDirection direction, std::byte* host) {
    CopyRequest request{.pool = pool, .direction = direction};
    for (uint64_t offset = 0; offset < kPoolBytes; offset += 2 * kMiB) {
      request.copies.push_back({offset, host + offset, 2 * kMiB});
    }
    return CopyAndWait(std::move(request));
  }
};

TEST_F(DeviceSharingTest, WhatAnotherProcessWritesIsOffloaded) {
  const auto pool = MakePool(kPoolBytes);
  PoolPeer writer(*pool, "fill", 11);
  ASSERT_EQ(writer.Wait(), 0);
  PinnedBuffer host(device_.get(), kPoolBytes);
  ASSERT_TRUE(CopyAll(pool.get(), CopyDirection::kPoolToHost, host.data()));
  EXPECT_TRUE(std::ranges::equal(host.span(), BytesOf(11)));
}

TEST_F(DeviceSharingTest, WhatIsOnloadedAnotherProcessReads) {
  const auto pool = MakePool(kPoolBytes);
  PinnedBuffer host(device_.get(), kPoolBytes);
  FillFromSeed(12, host.span());
  ASSERT_TRUE(CopyAll(pool.get(), CopyDirection::kHostToPool, host.data()));
  PoolPeer reader(*pool, "check", 12);
  EXPECT_EQ(reader.Wait(), 0);
  PoolPeer doubter(*pool, "check", 13);
  EXPECT_EQ(doubter.Wait(), 2) << "the check must be able to fail";
}

// A client that dies while it writes costs nothing but the blocks that it was writing.
TEST_F(DeviceSharingTest, KilledClientsLeakNothingAndHurtNobody) {
  constexpr int kKills = 5;
  const auto pool = MakePool(kPoolBytes);
  const auto bystander = Map(*pool);
  const std::vector<std::byte> bytes = BytesOf(14);
  constexpr uint64_t kHalf = kPoolBytes / 2;
  ASSERT_TRUE(bystander->Write(kHalf, bytes.data(), kHalf));
  PinnedBuffer host(device_.get(), kPoolBytes);
  const uint64_t free_before = FreeVram();
  for (int i = 0; i < kKills; ++i) {
    PoolPeer victim(*pool, "churn", 15);
    ASSERT_TRUE(victim.WaitUntilReady());
    // Copies go on before, during and after.
    ASSERT_TRUE(CopyAll(pool.get(), CopyDirection::kPoolToHost, host.data()));
    victim.Kill();
    ASSERT_TRUE(CopyAll(pool.get(), CopyDirection::kPoolToHost, host.data()));
    EXPECT_TRUE(std::ranges::equal(host.span().subspan(kHalf), std::span(bytes).first(kHalf)));
  }
  EXPECT_GE(FreeVram() + 64 * kMiB, free_before);
}

// The daemon uses a dead process's blocks again when the process is gone and the driver does not
// know it any more.
TEST_F(DeviceSharingTest, TheKernelsOfAProcessThatIsGoneWriteNoMore) {
  const auto pool = MakePool(kPoolBytes);
  PinnedBuffer host(device_.get(), kPoolBytes);
  const auto written = [&] {
    EXPECT_TRUE(CopyAll(pool.get(), CopyDirection::kPoolToHost, host.data()));
    return std::vector<std::byte>(host.span().begin(), host.span().end());
  };
  for (const char* command : {"kernel", "kernel-and-child"}) {
    SCOPED_TRACE(command);
    PoolPeer victim(*pool, command, 1);
    const auto pid = static_cast<int32_t>(victim.pid());
    ASSERT_TRUE(victim.WaitUntilReady());
    std::vector<std::byte> before = written();
    for (int tries = 0; tries < 100 && written() == before; ++tries) {
    }
    EXPECT_FALSE(written() == before) << "the kernel does not write";
    if (!HoldsVramOf(0, pid).value_or(false)) GTEST_SKIP() << "the driver does not tell";
    victim.Kill();
    const auto start = SteadyClock::now();
    const auto seconds = [&start] {
      return std::chrono::duration<double>(SteadyClock::now() - start).count();
    };
    while (HoldsVramOf(0, pid).value_or(false) && seconds() < 10) {
    }
    std::printf("%s: known to the driver for %.2f s after its end\n", command, seconds());
    EXPECT_LT(seconds(), 10);
    before = written();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(written() == before) << "it still writes";
  }
}

}  // namespace
}  // namespace kvtier
