// SPDX-License-Identifier: Apache-2.0
// Copies between VRAM and host memory move the right bytes and no others.
#include <algorithm>
#include <random>

#include "tests/gpu/device_fixture.h"

namespace kvtier {
namespace {

// Blocks of models people run: 16 tokens, K and V, all layers.
constexpr uint64_t kLlama8b = 2 * kMiB;                             // 32 layers, 8 x 128, bf16
constexpr uint64_t kLlama8bFp8 = 1 * kMiB;                          //
constexpr uint64_t kQwen06b = uint64_t{28} * 2 * 16 * 8 * 128 * 2;  // 1.75 MiB
constexpr uint64_t kGpt2 = uint64_t{12} * 2 * 16 * 12 * 64 * 2;     // 589,824
constexpr uint64_t kMla = uint64_t{61} * 16 * 576 * 2;              // one tensor of 576

class BlockSizes : public CudaDeviceTest, public ::testing::WithParamInterface<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Models, BlockSizes,
                         ::testing::Values(4 * kKiB, 64 * kKiB, 512 * kKiB, kGpt2, kLlama8bFp8,
                                           kMla, kQwen06b, kLlama8b, 40 * kMiB, 4097, 1));

// Fills a shuffled half of the pool's blocks from host memory, lets a client see them and write
// others, and brings everything back.
TEST_P(BlockSizes, RoundTripsLeaveEveryByteRight) {
  OpenDevice();
  const uint64_t block_bytes = GetParam();
  const uint64_t blocks = std::clamp<uint64_t>(64 * kMiB / block_bytes, 4, 4096) / 2 * 2;
  const auto pool = MakePool(blocks * block_bytes);
  const auto client = Map(*pool);
  PinnedBuffer host(device_.get(), blocks * block_bytes);
  FillFromSeed(block_bytes, host.span());
  std::vector<uint64_t> order(blocks);
  for (uint64_t i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(block_bytes));

  // Block i of host memory belongs at place order[i]; a client writes the second half there.
  CopyRequest up{.pool = pool.get(), .direction = CopyDirection::kHostToPool};
  for (uint64_t i = 0; i < blocks / 2; ++i) {
    up.copies.push_back({order[i] * block_bytes, host.data() + i * block_bytes, block_bytes});
  }
  ASSERT_TRUE(CopyAndWait(std::move(up)));
  for (uint64_t i = blocks / 2; i < blocks; ++i) {
    ASSERT_TRUE(client->Write(order[i] * block_bytes, host.data() + i * block_bytes, block_bytes));
  }

  std::vector<std::byte> seen(blocks * block_bytes);
  ASSERT_TRUE(client->Read(0, seen.data(), seen.size()));
  PinnedBuffer back(device_.get(), blocks * block_bytes);
  CopyRequest down{.pool = pool.get(), .direction = CopyDirection::kPoolToHost};
  for (uint64_t i = 0; i < blocks; ++i) {
    ASSERT_TRUE(std::equal(host.data() + i * block_bytes, host.data() + (i + 1) * block_bytes,
                           seen.data() + order[i] * block_bytes))
        << "block " << i;
    down.copies.push_back({order[i] * block_bytes, back.data() + i * block_bytes, block_bytes});
  }
  ASSERT_TRUE(CopyAndWait(std::move(down)));
  EXPECT_TRUE(std::ranges::equal(back.span(), host.span()));
}

using DeviceCopyTest = CudaDeviceTest;

TEST_F(DeviceCopyTest, BytesBesideACopyStayWhatTheyWere) {
  OpenDevice();
  const auto pool = MakePool(8 * kMiB);
  const auto client = Map(*pool);
  PinnedBuffer host(device_.get(), 3 * kMiB + 123);
  FillFromSeed(3, host.span());
  ASSERT_TRUE(CopyAndWait({.pool = pool.get(),
                           .direction = CopyDirection::kHostToPool,
                           .copies = {{777, host.data(), host.span().size()}}}));
  std::vector<std::byte> seen(8 * kMiB);
  ASSERT_TRUE(client->Read(0, seen.data(), seen.size()));
  const auto zero = [](std::byte b) { return b == std::byte{0}; };
  EXPECT_TRUE(std::all_of(seen.begin(), seen.begin() + 777, zero));
  EXPECT_TRUE(std::ranges::equal(std::span(seen).subspan(777, host.span().size()), host.span()));
  const auto end = static_cast<int64_t>(777 + host.span().size());
  EXPECT_TRUE(std::all_of(seen.begin() + end, seen.end(), zero));
}

TEST_F(DeviceCopyTest, MemoryThatIsNotPinnedIsCopiedToo) {
  OpenDevice();
  const auto pool = MakePool(32 * kMiB);
  std::vector<std::byte> host(32 * kMiB);
  FillFromSeed(4, host);
  std::vector<std::byte> back(32 * kMiB);
  CopyRequest up{.pool = pool.get(), .direction = CopyDirection::kHostToPool};
  CopyRequest down{.pool = pool.get(), .direction = CopyDirection::kPoolToHost};
  for (uint64_t i = 0; i < 32; ++i) {
    up.copies.push_back({i * kMiB, host.data() + i * kMiB, kMiB});
    down.copies.push_back({i * kMiB, back.data() + i * kMiB, kMiB});
  }
  ASSERT_TRUE(CopyAndWait(std::move(up)));
  ASSERT_TRUE(CopyAndWait(std::move(down)));
  EXPECT_EQ(back, host);
}

TEST_F(DeviceCopyTest, ARequestOfNothingIsDone) {
  OpenDevice();
  const auto pool = MakePool(2 * kMiB);
  EXPECT_TRUE(CopyAndWait({.pool = pool.get()}));
  std::byte byte{};
  EXPECT_TRUE(CopyAndWait({.pool = pool.get(), .copies = {{2 * kMiB, &byte, 0}}}));
}

TEST_F(DeviceCopyTest, CopiesBeyondThePoolAreRefusedWhole) {
  OpenDevice();
  const auto pool = MakePool(2 * kMiB);
  std::vector<std::byte> host(8192);
  for (const uint64_t offset : {2 * kMiB - 4096, 2 * kMiB, UINT64_MAX - 100, UINT64_MAX}) {
    const Status status = CopyAndWait({.pool = pool.get(),
                                       .direction = CopyDirection::kHostToPool,
                                       .copies = {{offset, host.data(), host.size()}}});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().reason, "copy_out_of_bounds");
  }
}

// Blocks whose parts lie apart in the pool, as those of layers that are tensors of their own: part
// i of block b at (i * blocks + b) * part_bytes. On the host a block is contiguous.
class SmallParts : public CudaDeviceTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  static constexpr uint64_t kBlocks = 64;
  static constexpr uint64_t kParts = 32;

  [[nodiscard]] static uint64_t BytesInAll() { return kBlocks * kParts * GetParam(); }
  // Copies every second block, so that something lies between them that no copy may touch.
  [[nodiscard]] static CopyRequest Request(DevicePool* pool, CopyDirection direction,
                                           std::byte* host) {
    CopyRequest request{.pool = pool, .direction = direction};
    for (uint64_t block = 0; block < kBlocks; block += 2) {
      for (uint64_t part = 0; part < kParts; ++part) {
        request.copies.push_back({(part * kBlocks + block) * GetParam(),
                                  host + (block * kParts + part) * GetParam(), GetParam()});
      }
    }
    return request;
  }
  // The pool's expected content after the blocks of `host` were copied into zeros.
  [[nodiscard]] static std::vector<std::byte> Expected(std::span<const std::byte> host) {
    std::vector<std::byte> expected(BytesInAll());
    for (uint64_t block = 0; block < kBlocks; block += 2) {
      for (uint64_t part = 0; part < kParts; ++part) {
        std::ranges::copy(host.subspan((block * kParts + part) * GetParam(), GetParam()),
                          expected.data() + (part * kBlocks + block) * GetParam());
      }
    }
    return expected;
  }
};

INSTANTIATE_TEST_SUITE_P(Bytes, SmallParts, ::testing::Values(16, 1000, 2048, 18432, 65536));

TEST_P(SmallParts, ArriveInTheirPlacesAndTouchNothingBetween) {
  OpenDevice();
  const auto pool = MakePool(BytesInAll());
  PinnedBuffer host(device_.get(), BytesInAll());
  FillFromSeed(GetParam(), host.span());
  ASSERT_TRUE(CopyAndWait(Request(pool.get(), CopyDirection::kHostToPool, host.data())));
  std::vector<std::byte> seen(BytesInAll());
  ASSERT_TRUE(Map(*pool)->Read(0, seen.data(), seen.size()));
  EXPECT_EQ(seen, Expected(host.span()));

  PinnedBuffer back(device_.get(), BytesInAll());
  ASSERT_TRUE(CopyAndWait(Request(pool.get(), CopyDirection::kPoolToHost, back.data())));
  const uint64_t block_bytes = kParts * GetParam();
  for (uint64_t block = 0; block < kBlocks; ++block) {
    const auto there = back.span().subspan(block * block_bytes, block_bytes);
    const auto from = host.span().subspan(block * block_bytes, block_bytes);
    if (block % 2 == 0) {
      EXPECT_TRUE(std::ranges::equal(there, from)) << "block " << block;
    } else {
      EXPECT_TRUE(std::ranges::all_of(there, [](std::byte b) { return b == std::byte{0}; }));
    }
  }
}

TEST_P(SmallParts, ArriveFromMemoryThatIsNotPinned) {
  OpenDevice();
  const auto pool = MakePool(BytesInAll());
  std::vector<std::byte> host(BytesInAll());
  FillFromSeed(GetParam() + 1, host);
  ASSERT_TRUE(CopyAndWait(Request(pool.get(), CopyDirection::kHostToPool, host.data())));
  std::vector<std::byte> seen(BytesInAll());
  ASSERT_TRUE(Map(*pool)->Read(0, seen.data(), seen.size()));
  EXPECT_EQ(seen, Expected(host));
}

// Both directions, all priorities and several pools at once.
TEST_F(DeviceCopyTest, ManyRequestsAtOnceDoNotMixTheirBytes) {
  OpenDevice({.chunk_bytes = 1 * kMiB});
  constexpr uint64_t kBytes = 24 * kMiB;
  constexpr uint64_t kBlock = 200'000;
  constexpr int kPools = 3;
  std::vector<std::unique_ptr<DevicePool>> pools;
  PinnedBuffer host(device_.get(), kPools * kBytes);
  PinnedBuffer back(device_.get(), kPools * kBytes);
  FillFromSeed(6, host.span());
  int left = 0;
  const auto start = [&](int pool, CopyDirection direction, std::byte* memory) {
    for (uint64_t offset = 0; offset < kBytes; offset += kBlock) {
      const uint64_t bytes = std::min(kBlock, kBytes - offset);
      ++left;
      device_->Copy({.pool = pools[pool].get(),
                     .direction = direction,
                     .priority = static_cast<CopyPriority>(offset / kBlock % kCopyPriorityCount),
                     .copies = {{offset, memory + pool * kBytes + offset, bytes}},
                     .done = [&](const Status& status) {
                       EXPECT_TRUE(status);
                       --left;
                     }});
    }
  };
  for (int i = 0; i < kPools; ++i) {
    pools.push_back(MakePool(kBytes));
    start(i, CopyDirection::kHostToPool, host.data());
  }
  loop_.RunUntil([&] { return left == 0; });
  for (int i = 0; i < kPools; ++i) start(i, CopyDirection::kPoolToHost, back.data());
  loop_.RunUntil([&] { return left == 0; });
  EXPECT_TRUE(std::ranges::equal(back.span(), host.span()));
}

}  // namespace
}  // namespace kvtier
