// SPDX-License-Identifier: Apache-2.0
// kvt::Result of the C++ interface: what an access without a check does.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kvtier/kvtier.hpp"

namespace kvt {
namespace {

Result<std::string> Refused() { return Error{KVT_UNAVAILABLE, "no_daemon", "/run/x.sock"}; }

TEST(ResultTest, AccessToAnErrorThrowsThatError) {
  Result<std::string> refused = Refused();
  EXPECT_THROW((void)refused->size(), BadResultAccess);
  EXPECT_THROW((void)*refused, BadResultAccess);
  EXPECT_THROW((void)refused.value(), BadResultAccess);
  EXPECT_THROW((void)Refused().value(), BadResultAccess);
  const Result<std::string> constant = Refused();
  EXPECT_THROW((void)constant->size(), BadResultAccess);
  try {
    (void)*constant;
    FAIL() << "nothing was thrown";
  } catch (const BadResultAccess& bad) {
    EXPECT_EQ(bad.error().code, KVT_UNAVAILABLE);
    EXPECT_EQ(bad.error().reason, "no_daemon");
    EXPECT_NE(std::string(bad.what()).find("/run/x.sock"), std::string::npos);
  }
}

TEST(ResultTest, AValueIsAccessedAsItIs) {
  Result<std::unique_ptr<int>> held = std::make_unique<int>(7);
  EXPECT_EQ(**held, 7);
  EXPECT_EQ(*held->get(), 7);
  EXPECT_EQ(*std::move(held).value(), 7);
}

TEST(ResultTest, TheValueOfAFailedStatusThrowsItsError) {
  EXPECT_NO_THROW(Status().value());
  const Status failed = Error{KVT_TIMEOUT, "late", "by a day"};
  EXPECT_THROW(failed.value(), BadResultAccess);
}

TEST(ResultTest, TheErrorOfAValueSaysOk) {
  EXPECT_EQ(Result<int>(7).error().code, KVT_OK);
  EXPECT_EQ(Status().error().code, KVT_OK);
}

TEST(ResultTest, CallsWithoutChecksSayWhatWentWrong) {
  auto connection = Connection::Connect("/nonexistent/kvtier.sock");
  EXPECT_THROW((void)connection->IsConnected(), BadResultAccess);
}

}  // namespace
}  // namespace kvt
