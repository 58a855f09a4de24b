// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/kvtierctl/command.h"

namespace kvtier {
namespace {

TEST(ExitCodeTest, ErrorsMapToTheDocumentedNumbers) {
  const auto number = [](ErrorCode code) { return static_cast<int>(ExitCodeOf(code)); };
  EXPECT_EQ(number(ErrorCode::kInternal), 1);
  EXPECT_EQ(number(ErrorCode::kIoError), 1);
  EXPECT_EQ(number(ErrorCode::kInvalidArgument), 2);
  EXPECT_EQ(number(ErrorCode::kUnavailable), 3);
  EXPECT_EQ(number(ErrorCode::kNotFound), 4);
  EXPECT_EQ(number(ErrorCode::kCorrupt), 5);
  EXPECT_EQ(number(ErrorCode::kTimeout), 6);
  EXPECT_EQ(number(ErrorCode::kPermissionDenied), 7);
  EXPECT_EQ(static_cast<int>(ExitCode::kPartial), 8);
}

}  // namespace
}  // namespace kvtier
