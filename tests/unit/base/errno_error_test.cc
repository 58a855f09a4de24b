// SPDX-License-Identifier: Apache-2.0
#include "base/errno_error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvtier {
namespace {

TEST(ErrnoError, ReasonIsTheErrnosName) {
  const Error error = ErrnoError(ErrorCode::kIoError, ENOSPC, "write blocks.0");
  EXPECT_EQ(error.code, ErrorCode::kIoError);
  EXPECT_EQ(error.reason, "ENOSPC");
  EXPECT_EQ(error.context, "write blocks.0: No space left on device");
}

TEST(ErrnoError, NumbersWithoutANameAreStillTold) {
  EXPECT_EQ(ErrnoName(9999), "E9999");
  EXPECT_EQ(ErrnoError(ErrorCode::kIoError, 9999, "open").context, "open");
}

}  // namespace
}  // namespace kvtier
