// SPDX-License-Identifier: Apache-2.0
// Pools in VRAM: their memory, their bounds, their end.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "tests/gpu/device_fixture.h"

namespace kvtier {
namespace {

using DevicePoolTest = CudaDeviceTest;

TEST_F(DevicePoolTest, TheDeviceSaysWhatItIs) {
  OpenDevice();
  const DeviceInfo info = device_->info();
  EXPECT_EQ(info.kind, "cuda");
  EXPECT_NE(info.name, "");
  EXPECT_GT(info.total_bytes, 1 * kGiB);
  EXPECT_GT(info.free_bytes, 0u);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

TEST_F(DevicePoolTest, AGpuBeyondTheLastIsRefused) {
  const auto device = OpenCudaDevice({.ordinal = 99}, &loop_);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().reason, "no_such_device");
}

TEST_F(DevicePoolTest, SizesAreRoundedUpAndTheDescriptorIsPrivate) {
  OpenDevice();
  const auto pool = MakePool(3 * kMiB + 5);
  EXPECT_EQ(pool->bytes(), 4 * kMiB);
  EXPECT_NE(::fcntl(pool->shareable_fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(DevicePoolTest, ImpossiblePoolsAreRefusedWithNumbers) {
  OpenDevice();
  EXPECT_EQ(device_->CreatePool(0).error().reason, "empty_pool");
  for (const uint64_t bytes : {uint64_t{1} << 45, uint64_t{1} << 62}) {
    const auto pool = device_->CreatePool(bytes);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(pool.error().reason, "pool_exceeds_vram");
    EXPECT_NE(pool.error().context.find(" free of "), std::string::npos) << pool.error().context;
  }
}

// The descriptor alone keeps the memory, as the keeper does between two daemons.
TEST_F(DevicePoolTest, APoolIsThereAgainThroughItsDescriptor) {
  OpenDevice();
  constexpr uint64_t kBytes = 64 * kMiB;
  PinnedBuffer buffer(device_.get(), kBytes);
  FillFromSeed(7, buffer.span());
  const std::vector<std::byte> written(buffer.span().begin(), buffer.span().end());
  UniqueFd kept;
  {
    const auto pool = MakePool(kBytes);
    ASSERT_TRUE(CopyAndWait({.pool = pool.get(),
                             .direction = CopyDirection::kHostToPool,
                             .copies = {{0, buffer.data(), kBytes}}}));
    kept = UniqueFd(::fcntl(pool->shareable_fd(), F_DUPFD_CLOEXEC, 3));
  }
  const auto again = device_->AdoptPool(std::move(kept), kBytes);
  ASSERT_TRUE(again) << again.error().ToString();
  std::ranges::fill(buffer.span(), std::byte{0});
  ASSERT_TRUE(CopyAndWait({.pool = again->get(),
                           .direction = CopyDirection::kPoolToHost,
                           .copies = {{0, buffer.data(), kBytes}}}));
  EXPECT_TRUE(std::ranges::equal(buffer.span(), written));
}

TEST_F(DevicePoolTest, ADescriptorOfSomethingElseIsNoPool) {
  OpenDevice();
  const auto pool = MakePool(4 * kMiB);
  const auto duplicate = [&] {
    return UniqueFd(::fcntl(pool->shareable_fd(), F_DUPFD_CLOEXEC, 3));
  };
  EXPECT_FALSE(device_->AdoptPool(duplicate(), 8 * kMiB));
  EXPECT_FALSE(device_->AdoptPool(duplicate(), 3 * kMiB));
  EXPECT_FALSE(device_->AdoptPool(UniqueFd(::memfd_create("none", MFD_CLOEXEC)), 4 * kMiB));
}

TEST_F(DevicePoolTest, ALargePoolIsZeroWhenItIsSaidToBeReady) {
  OpenDevice();
  constexpr uint64_t kBytes = 8 * kGiB;
  for (int round = 0; round < 2; ++round) {
    const auto pool = device_->CreatePool(kBytes);
    ASSERT_TRUE(pool) << pool.error().ToString();
    bool ready = false;
    (*pool)->WhenReady([&] { ready = true; });
    EXPECT_FALSE(ready) << "nothing that was posted has run";
    loop_.RunUntil([&] { return ready; });
    bool at_once = false;
    (*pool)->WhenReady([&] { at_once = true; });
    EXPECT_TRUE(at_once);
    const auto client = Map(**pool);
    std::vector<std::byte> bytes(16 * kMiB, std::byte{1});
    ASSERT_TRUE(client->Read(kBytes - bytes.size(), bytes.data(), bytes.size()));
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(bytes, std::byte{0xa5});
    ASSERT_TRUE(client->Write(kBytes - bytes.size(), bytes.data(), bytes.size()));
  }
}

TEST_F(DevicePoolTest, APoolThatEndsBeforeItIsReadyTellsNobody) {
  OpenDevice();
  auto pool = device_->CreatePool(8 * kGiB);
  ASSERT_TRUE(pool) << pool.error().ToString();
  (*pool)->WhenReady([] { ADD_FAILURE() << "the pool has gone"; });
  *pool = nullptr;
  auto next = device_->CreatePool(8 * kGiB);
  ASSERT_TRUE(next) << next.error().ToString();
  bool ready = false;
  (*next)->WhenReady([&] { ready = true; });
  loop_.RunUntil([&] { return ready; });
}

// Memory of pools that ended comes back in later ones: another tenant's bytes must not.
TEST_F(DevicePoolTest, EveryNewPoolIsZero) {
  OpenDevice();
  for (int round = 0; round < 3; ++round) {
    const auto pool = MakePool(256 * kMiB);
    const auto client = Map(*pool);
    std::vector<std::byte> bytes(pool->bytes(), std::byte{1});
    ASSERT_TRUE(client->Read(0, bytes.data(), bytes.size()));
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(bytes, std::byte{0xa5});
    ASSERT_TRUE(client->Write(0, bytes.data(), bytes.size()));
  }
}

TEST_F(DevicePoolTest, MemoryComesBackWhenPoolAndMappingsHaveGone) {
  OpenDevice();
  const uint64_t before = FreeVram();
  {
    const auto pool = MakePool(1 * kGiB);
    const auto client = Map(*pool);
    EXPECT_LE(FreeVram(), before - 1 * kGiB);
  }
  EXPECT_GE(FreeVram() + 64 * kMiB, before);
}

TEST_F(DevicePoolTest, MappingsOutliveThePool) {
  OpenDevice();
  auto pool = MakePool(4 * kMiB);
  const auto client = Map(*pool);
  std::vector<std::byte> bytes(4 * kMiB);
  FillFromSeed(1, bytes);
  ASSERT_TRUE(client->Write(0, bytes.data(), bytes.size()));
  pool.reset();
  std::vector<std::byte> found(4 * kMiB);
  ASSERT_TRUE(client->Read(0, found.data(), found.size()));
  EXPECT_EQ(found, bytes);
}

}  // namespace
}  // namespace kvtier
