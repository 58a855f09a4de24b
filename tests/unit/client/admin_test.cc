// SPDX-License-Identifier: Apache-2.0
// The admin call, against a one-shot server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;
using Bytes = FakeDaemon::Bytes;

class AdminTest : public ClientFixture {
 protected:
  kvt_status Call(const std::string& request, int64_t timeout_ms = 60'000) {
    char* text = nullptr;
    const auto collect = [](void* user, const char* json) {
      static_cast<std::vector<std::string>*>(user)->push_back(json);
    };
    const kvt_status status =
        kvt_admin(socket_path().c_str(), request.c_str(), timeout_ms, collect, &progress_, &text);
    if (text != nullptr) reply_ = text;
    kvt_string_free(text);
    return status;
  }

  std::vector<std::string> progress_;
  std::string reply_;
};

TEST_F(AdminTest, ProgressComesInOrderAndTheReplyLast) {
  const auto asked = std::make_shared<std::string>();
  daemon_->Intercept([asked](const wire::Frame& frame) -> std::optional<Bytes> {
    *asked = wire::Decode<wire::AdminRequest>(frame.payload)->json;
    Bytes bytes = FrameOf(wire::AdminProgress{.json = "{\"n\":1}"}, frame.request_id);
    wire::Encode(wire::AdminProgress{.json = "{\"n\":2}"}, frame.request_id, &bytes);
    // Longer than any frame of the data socket.
    wire::Encode(wire::AdminReply{.json = std::string(2 << 20, ' ') + "{}"}, frame.request_id,
                 &bytes);
    return bytes;
  });
  ASSERT_EQ(Call("{\"op\":\"verify\"}"), KVT_OK) << kvt_last_error()->reason;
  EXPECT_EQ(*asked, "{\"op\":\"verify\"}");
  EXPECT_THAT(progress_, ElementsAre("{\"n\":1}", "{\"n\":2}"));
  EXPECT_EQ(reply_.size(), (2u << 20) + 2);
}

TEST_F(AdminTest, ARefusalKeepsItsCodeAndReason) {
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<Bytes> {
    return FrameOf(wire::ErrorReply{{ErrorCode::kNotFound, "unknown_operation", "\"x\""}},
                   frame.request_id);
  });
  EXPECT_EQ(Call("{}"), KVT_NOT_FOUND);
  EXPECT_STREQ(kvt_last_error()->reason, "unknown_operation");
  EXPECT_STREQ(kvt_last_error()->context, "\"x\"");
}

TEST_F(AdminTest, ARefusalAtTheDoorKeepsItsCode) {
  daemon_->Intercept([](const wire::Frame&) -> std::optional<Bytes> {
    return FrameOf(wire::ErrorReply{{ErrorCode::kPermissionDenied, "not_admin", "uid 1"}}, 0);
  });
  EXPECT_EQ(Call("{}"), KVT_PERMISSION_DENIED);
}

TEST_F(AdminTest, ASilentDaemonIsATimeoutAndAMissingOneUnavailable) {
  daemon_->Intercept([](const wire::Frame&) -> std::optional<Bytes> { return Bytes(); });
  EXPECT_EQ(Call("{}", 20), KVT_TIMEOUT);
  daemon_.reset();
  EXPECT_EQ(Call("{}"), KVT_UNAVAILABLE);
}

TEST_F(AdminTest, ARequestTooLongIsRefusedHere) {
  EXPECT_EQ(Call(std::string(wire::kMaxAdminRequestTextBytes + 1, ' ')), KVT_LIMIT_EXCEEDED);
}

}  // namespace
}  // namespace kvtier::client
