// SPDX-License-Identifier: Apache-2.0
#include "base/aligned_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace kvtier {
namespace {

TEST(AlignedBuffer, IsAlignedZeroedAndOfTheSizeAsked) {
  for (const size_t bytes : {1, 4095, 4096, 4097, 100000}) {
    AlignedBuffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.span().data()) % 4096, 0u);
    EXPECT_EQ(buffer.span().size(), bytes);
    EXPECT_THAT(buffer.span(), ::testing::Each(std::byte{0}));
  }
}

TEST(AlignedBuffer, MovingKeepsTheBytesInPlace) {
  AlignedBuffer first(5000);
  first.span()[4999] = std::byte{7};
  const std::byte* const data = first.span().data();
  const AlignedBuffer second = std::move(first);
  EXPECT_EQ(second.span().data(), data);
  EXPECT_EQ(second.span()[4999], std::byte{7});
}

TEST(AlignedBuffer, NoneIsEmpty) { EXPECT_TRUE(AlignedBuffer().span().empty()); }

}  // namespace
}  // namespace kvtier
