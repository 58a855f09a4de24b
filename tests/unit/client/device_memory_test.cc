// SPDX-License-Identifier: Apache-2.0
// Blocks read and written without knowing where they are, and pools that are not on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

class DeviceMemoryTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    Attach();
    auto acquired = pool_->Acquire({}, {}, 2);
    ASSERT_TRUE(acquired) << acquired.error().ToString();
    acquired_.emplace(*std::move(acquired));
    block_bytes_ = pool_->Info().block_bytes;
  }
  void TearDown() override {
    acquired_.reset();
    ClientFixture::TearDown();
  }
  [[nodiscard]] const kvt_block& block(size_t i) const { return acquired_->new_blocks[i]; }

  std::optional<kvt::Acquired> acquired_;
  uint64_t block_bytes_ = 0;
};

TEST_F(DeviceMemoryTest, WhatIsWrittenIsReadAndIsInPlace) {
  const std::vector<std::byte> bytes(block_bytes_, std::byte{7});
  ASSERT_TRUE(pool_->Write(block(1), bytes));
  const std::vector<std::byte> two(2, std::byte{9});
  ASSERT_TRUE(pool_->Write(block(1), two, 3));

  std::vector<std::byte> expected = bytes;
  std::ranges::copy(two, expected.begin() + 3);
  std::vector<std::byte> found(block_bytes_);
  ASSERT_TRUE(pool_->Read(block(1), found));
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(std::ranges::equal(*pool_->Bytes(block(1)), expected));
  std::vector<std::byte> part(2);
  ASSERT_TRUE(pool_->Read(block(1), part, 3));
  EXPECT_EQ(part, two);
}

TEST_F(DeviceMemoryTest, OneBlocksBoundsHold) {
  std::vector<std::byte> bytes(block_bytes_ + 1);
  EXPECT_EQ(pool_->Write(block(0), bytes).error().reason, "outside_block");
  bytes.resize(1);
  EXPECT_EQ(pool_->Read(block(0), bytes, block_bytes_).error().reason, "outside_block");
  EXPECT_EQ(pool_->Read(block(0), bytes, UINT64_MAX).error().reason, "outside_block");
  kvt_block outside = block(0);
  outside.index = pool_->Info().blocks;
  EXPECT_EQ(pool_->Read(outside, bytes).error().reason, "block_outside_pool");
  EXPECT_EQ(kvt_pool_read(pool_->get(), block(0), 0, nullptr, 1), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_pool_read(pool_->get(), block(0), 0, nullptr, 0), KVT_OK);
}

TEST_F(DeviceMemoryTest, AHostPoolHasNoDeviceMapping) {
  const auto mapping = pool_->MapDevice();
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error().code, KVT_UNSUPPORTED);
  EXPECT_EQ(mapping.error().reason, "host_memory");
  kvt_device_mapping unsized{};
  EXPECT_EQ(kvt_pool_map_device(pool_->get(), &unsized), KVT_INVALID_ARGUMENT);
}

TEST_F(DeviceMemoryTest, UnmappingTheDeviceLeavesHostMemoryAlone) {
  pool_->UnmapDevice();
  const std::vector<std::byte> bytes(block_bytes_, std::byte{5});
  ASSERT_TRUE(pool_->Write(block(0), bytes));
  EXPECT_TRUE(std::ranges::equal(*pool_->Bytes(block(0)), bytes));
  kvt_pool_unmap_device(nullptr);
}

}  // namespace
}  // namespace kvtier::client
