// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

#include "base/posix.h"

namespace kvtier {
namespace {

TEST(Error, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (uint16_t code = 1; code <= static_cast<uint16_t>(ErrorCode::kInternal); ++code) {
    names.insert(ErrorCodeName(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), 16u);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(ErrorCodeName(static_cast<ErrorCode>(0)), "unknown");
}

TEST(Error, ReadsAsCodeReasonContext) {
  EXPECT_EQ((Error{ErrorCode::kNotFound, "no_pool", "pool 7"}).ToString(),
            "not_found: no_pool (pool 7)");
  EXPECT_EQ((Error{ErrorCode::kNotFound, "no_pool", ""}).ToString(), "not_found: no_pool");
}

Result<int> Half(int number) {
  if (number % 2 != 0) return MakeError(ErrorCode::kInvalidArgument, "odd");
  return number / 2;
}

Result<int> Quarter(int number) {
  KVT_ASSIGN_OR_RETURN(const int half, Half(number));
  return Half(half);
}

Status CheckQuarter(int number) {
  KVT_RETURN_IF_ERROR(Quarter(number));
  return {};
}

TEST(Result, MacrosPassErrorsAndValuesOn) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).error().reason, "odd");
  EXPECT_TRUE(CheckQuarter(8).has_value());
  EXPECT_EQ(CheckQuarter(3).error().code, ErrorCode::kInvalidArgument);
}

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
