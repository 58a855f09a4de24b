// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "client/core/daemon_session.h"

namespace kvtier::client {
namespace {

AsyncError Numbered(uint32_t number) {
  return {.block = {BlockIndex{number}, 0}, .code = ErrorCode::kStaleHandle, .reason = "r"};
}

TEST(AsyncErrors, AreTakenOldestFirst) {
  AsyncErrors errors;
  for (uint32_t i = 0; i < 3; ++i) errors.Add(Numbered(i));
  uint64_t dropped = 99;
  const auto first = errors.Take(2, &dropped);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].block.index.value, 0u);
  EXPECT_EQ(dropped, 0u);
  EXPECT_EQ(errors.Take(10, &dropped).size(), 1u);
  EXPECT_TRUE(errors.Take(10, &dropped).empty());
}

TEST(AsyncErrors, TheOldestAreDroppedAndCounted) {
  AsyncErrors errors;
  for (uint32_t i = 0; i < AsyncErrors::kKept + 5; ++i) errors.Add(Numbered(i));
  uint64_t dropped = 0;
  const auto kept = errors.Take(AsyncErrors::kKept + 5, &dropped);
  ASSERT_EQ(kept.size(), AsyncErrors::kKept);
  EXPECT_EQ(kept[0].block.index.value, 5u);
  EXPECT_EQ(dropped, 5u);
  EXPECT_TRUE(errors.Take(1, &dropped).empty());
  EXPECT_EQ(dropped, 0u);
}

}  // namespace
}  // namespace kvtier::client
