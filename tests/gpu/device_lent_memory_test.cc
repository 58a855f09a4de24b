// SPDX-License-Identifier: Apache-2.0
// GPU memory that other processes lend.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/device_fixture.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = 32 * kMiB;

class DeviceLentMemoryTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    if (!IsSkipped()) OpenDevice();
  }
  static LentMemory Exported(const DevicePool& pool, uint64_t bytes) {
    LentMemory lent{.kind = LentMemory::Kind::kVmm, .bytes = bytes};
    lent.descriptor = LentDescriptor(UniqueFd(::fcntl(pool.shareable_fd(), F_DUPFD_CLOEXEC, 0)));
    return lent;
  }
  std::unique_ptr<DevicePool> Borrow(LentMemory lent) {
    Result<std::unique_ptr<DevicePool>> borrowed = device_->Borrow(&lent);
    EXPECT_TRUE(borrowed) << borrowed.error().ToString();
    return borrowed ? *std::move(borrowed) : nullptr;
  }
  std::string ReasonAgainst(LentMemory lent) {
    const auto borrowed = device_->Borrow(&lent);
    return borrowed ? "" : borrowed.error().reason;
  }
  Status CopyAll(DevicePool* pool, CopyDirection direction, std::byte* host) {
    CopyRequest request{.pool = pool, .direction = direction};
    request.copies.push_back({0, host, kBytes});
    return CopyAndWait(std::move(request));
  }
  static std::vector<std::byte> BytesOf(uint64_t seed) {
    std::vector<std::byte> bytes(kBytes);
    FillFromSeed(seed, bytes);
    return bytes;
  }
};

TEST_F(DeviceLentMemoryTest, AnExportedAllocationIsCopiedFromAndTo) {
  const auto owner = MakePool(kBytes);
  const auto borrowed = Borrow(Exported(*owner, owner->bytes()));
  ASSERT_NE(borrowed, nullptr);
  PinnedBuffer host(device_.get(), kBytes);
  PoolPeer writer(*owner, "fill", 21);
  ASSERT_EQ(writer.Wait(), 0);
  ASSERT_TRUE(CopyAll(borrowed.get(), CopyDirection::kPoolToHost, host.data()));
  EXPECT_TRUE(std::ranges::equal(host.span(), BytesOf(21)));
  FillFromSeed(22, host.span());
  ASSERT_TRUE(CopyAll(borrowed.get(), CopyDirection::kHostToPool, host.data()));
  PoolPeer reader(*owner, "check", 22);
  EXPECT_EQ(reader.Wait(), 0);
}

TEST_F(DeviceLentMemoryTest, AnIpcHandleIsCopiedFromAlsoAfterItsOwnerWasKilled) {
  PoolPeer lender(kBytes, 23);
  const auto borrowed = Borrow(
      {.kind = LentMemory::Kind::kCudaIpc, .ipc_handle = lender.ReadIpcHandle(), .bytes = kBytes});
  ASSERT_NE(borrowed, nullptr);
  PinnedBuffer host(device_.get(), kBytes);
  ASSERT_TRUE(CopyAll(borrowed.get(), CopyDirection::kPoolToHost, host.data()));
  EXPECT_TRUE(std::ranges::equal(host.span(), BytesOf(23)));
  lender.Kill();
  // The bytes read now mean nothing. The copy must end, and hurt no other.
  (void)CopyAll(borrowed.get(), CopyDirection::kPoolToHost, host.data());
  const auto pool = MakePool(kBytes);
  EXPECT_TRUE(CopyAll(pool.get(), CopyDirection::kPoolToHost, host.data()));
}

TEST_F(DeviceLentMemoryTest, WhatIsNotTheMemoryThatItIsSaidToBeIsRefused) {
  const auto owner = MakePool(kBytes);
  EXPECT_EQ(ReasonAgainst(Exported(*owner, 4 * owner->bytes())), "bad_region_memory");
  LentMemory file{.kind = LentMemory::Kind::kVmm, .bytes = kBytes};
  file.descriptor = LentDescriptor(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  EXPECT_EQ(ReasonAgainst(std::move(file)), "bad_region_memory");
  EXPECT_EQ(ReasonAgainst({.kind = LentMemory::Kind::kCudaIpc, .bytes = kBytes}),
            "bad_region_memory");
  PoolPeer lender(kBytes, 24);
  EXPECT_EQ(ReasonAgainst({.kind = LentMemory::Kind::kCudaIpc,
                           .ipc_handle = lender.ReadIpcHandle(),
                           .bytes = 4 * kBytes}),
            "bad_region_memory");
  EXPECT_EQ(ReasonAgainst({.kind = LentMemory::Kind::kShared, .bytes = kBytes}),
            "region_memory_kind");
}

TEST_F(DeviceLentMemoryTest, ADeadLendersMemoryIsFreeOnceAnotherThreadLetsGoOfIt) {
  const uint64_t before = FreeVram();
  PoolPeer lender(kBytes, 25);
  auto borrowed = Borrow(
      {.kind = LentMemory::Kind::kCudaIpc, .ipc_handle = lender.ReadIpcHandle(), .bytes = kBytes});
  lender.Kill();
  EXPECT_LT(FreeVram(), before) << "the borrower holds it";
  std::thread([&] { borrowed.reset(); }).join();
  EXPECT_GE(FreeVram() + 4 * kMiB, before);
}

TEST_F(DeviceLentMemoryTest, GivenBackMemoryIsFreeAgain) {
  const uint64_t before = FreeVram();
  {
    auto owner = MakePool(kBytes);
    const auto borrowed = Borrow(Exported(*owner, owner->bytes()));
    owner.reset();
    EXPECT_LT(FreeVram(), before) << "the borrower holds it";
  }
  EXPECT_GE(FreeVram() + 4 * kMiB, before);
}

// Engines may have all of the first GPU, of which a context takes half a GiB. A thread that has
// chosen no GPU works on the first.
TEST_F(CudaDeviceTest, ObjectsOfTheSecondGpuThatEndTakeNothingOfTheFirst) {
  if (FindCudaDevices()->devices < 2) GTEST_SKIP() << "needs two GPUs";
  constexpr uint64_t kLarge = 512 * kMiB;
  constexpr uint64_t kSlack = 64 * kMiB;
  OpenDevice({.ordinal = 1});
  const uint64_t first = FreeVramOf(0).value();
  const uint64_t second = FreeVramOf(1).value();
  PoolPeer lender(kLarge, 26, 1);
  LentMemory lent{
      .kind = LentMemory::Kind::kCudaIpc, .ipc_handle = lender.ReadIpcHandle(), .bytes = kLarge};
  Result<std::unique_ptr<DevicePool>> borrowed = MakeError(ErrorCode::kUnavailable, "not_yet");
  std::unique_ptr<DevicePool> pool;
  std::thread([&] {
    borrowed = device_->Borrow(&lent);
    pool = MakePool(kLarge);
  }).join();
  ASSERT_TRUE(borrowed) << borrowed.error().ToString();
  lender.Kill();
  EXPECT_LT(FreeVramOf(1).value() + kLarge, second) << "they hold it";
  std::thread([&] {
    borrowed->reset();
    pool.reset();
  }).join();
  EXPECT_GE(FreeVramOf(1).value() + kSlack, second);
  std::thread([&] { device_.reset(); }).join();
  EXPECT_GE(FreeVramOf(0).value() + kSlack, first);
}

}  // namespace
}  // namespace kvtier
