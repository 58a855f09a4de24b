// SPDX-License-Identifier: Apache-2.0
// kvt_attend and workspaces: refusals of the library itself, and the limits of a broken daemon's
// harm. Results are tried on real daemons (tests/python/test_attention.py).

#include <gmock/gmock.h>

#include <future>
#include <memory>
#include <vector>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;

class AttentionTest : public ClientFixture {
 protected:
  // Answers WORKSPACE with `answer`.
  void AnswerWorkspace(const std::function<FakeDaemon::Bytes(uint64_t request_id)>& answer) {
    daemon_->Intercept([answer](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
      if (frame.type != static_cast<uint16_t>(wire::MessageType::kWorkspace)) return std::nullopt;
      return answer(frame.request_id);
    });
  }
};

TEST_F(AttentionTest, ADaemonThatDoesNotKnowTheMessageIsUnsupported) {
  Attach();
  AnswerWorkspace([](uint64_t request_id) {
    return FrameOf(wire::ErrorReply{{ErrorCode::kUnsupported, "unknown_message", ""}}, request_id);
  });
  const auto workspace = pool_->OpenWorkspace(4096);
  ASSERT_FALSE(workspace);
  EXPECT_EQ(workspace.error().code, KVT_UNSUPPORTED);
  // The connection goes on.
  EXPECT_TRUE(connection_->Ping());
}

TEST_F(AttentionTest, AReplyWithoutItsDescriptorOrTooSmallIsRefused) {
  Attach();
  AnswerWorkspace([](uint64_t request_id) {
    return FrameOf(wire::WorkspaceReply{8192, wire::DeviceKind::kHost}, request_id);
  });
  const auto without = pool_->OpenWorkspace(4096);
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().code, KVT_CORRUPT);
  AnswerWorkspace([](uint64_t request_id) {
    return FrameOf(wire::WorkspaceReply{4095, wire::DeviceKind::kHost}, request_id);
  });
  const auto small = pool_->OpenWorkspace(4096);
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, KVT_UNAVAILABLE);  // it broke the protocol
}

TEST_F(AttentionTest, SizesThatNobodyGivesAreRefusedWithoutAsking) {
  Attach();
  for (const uint64_t bytes : {uint64_t{0}, wire::kMaxWorkspaceBytes + 1, UINT64_MAX}) {
    const auto workspace = pool_->OpenWorkspace(bytes);
    ASSERT_FALSE(workspace);
    EXPECT_EQ(workspace.error().code, KVT_INVALID_ARGUMENT);
  }
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kWorkspace), 0);
}

TEST_F(AttentionTest, NullArgumentsAreRefused) {
  Attach();
  kvt_workspace* workspace = nullptr;
  EXPECT_EQ(kvt_workspace_open(nullptr, 4096, &workspace), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_workspace_open(pool_->get(), 4096, nullptr), KVT_INVALID_ARGUMENT);
  kvt_attend_request request;
  kvt_attend_request_init(&request);
  EXPECT_EQ(kvt_attend(nullptr, &request, 0, nullptr), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_sequence_blocks(nullptr, nullptr, 0), KVT_INVALID_ARGUMENT);
  kvt_workspace_close(nullptr);
}

TEST_F(AttentionTest, ARequestThatFindsNoRoomInTimeIsNotSentAndTheConnectionStands) {
  Attach();
  const auto workspace = pool_->OpenWorkspace(4096);
  ASSERT_TRUE(workspace);
  std::promise<void> gate;
  daemon_->Intercept([opened = gate.get_future().share()](
                         const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kAttend)) return std::nullopt;
    opened.wait();
    return FakeDaemon::Bytes();
  });
  kvt_attend_request request;
  kvt_attend_request_init(&request);
  const std::string before = "request_timeout";
  std::string reason = before;
  while (reason == before) {
    ASSERT_EQ(kvt_attend(workspace->get(), &request, 0, nullptr), KVT_TIMEOUT);
    reason = kvt_last_error()->reason;
  }
  EXPECT_EQ(reason, "not_sent");
  EXPECT_TRUE(connection_->IsConnected());
  gate.set_value();
  EXPECT_TRUE(connection_->Ping());
}

TEST_F(AttentionTest, ADaemonThatTakesInNothingIsGivenUpThoughEachRequestHasLessPatience) {
  Attach(ImpatientOptions());
  const auto workspace = pool_->OpenWorkspace(4096);
  ASSERT_TRUE(workspace);
  std::promise<void> gate;
  daemon_->Intercept([opened = gate.get_future().share()](
                         const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kAttend)) opened.wait();
    return FakeDaemon::Bytes();
  });
  kvt_attend_request request;
  kvt_attend_request_init(&request);
  kvt_status status = KVT_TIMEOUT;
  for (int64_t patience_ms = 0; status == KVT_TIMEOUT;) {
    status = kvt_attend(workspace->get(), &request, patience_ms, nullptr);
    if (std::string(kvt_last_error()->reason) == "not_sent") patience_ms = 1;
  }
  EXPECT_EQ(status, KVT_UNAVAILABLE);
  EXPECT_STREQ(kvt_last_error()->reason, "send_timeout");
  gate.set_value();
}

TEST_F(AttentionTest, AWorkspaceThatIsOpenedTooLateIsClosedAndItsNumberUsedAgain) {
  Attach(ImpatientOptions());
  daemon_->HoldBack(wire::MessageType::kWorkspace);
  EXPECT_EQ(pool_->OpenWorkspace(4096).error().code, KVT_TIMEOUT);
  const uint64_t late = daemon_->WaitForHeldBack();
  const auto opened = std::make_shared<std::vector<uint32_t>>();
  const auto closed = std::make_shared<std::vector<uint32_t>>();
  daemon_->Intercept([=](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kWorkspace)) {
      opened->push_back(wire::Decode<wire::Workspace>(frame.payload)->number);
    }
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kWorkspaceClose)) {
      closed->push_back(wire::Decode<wire::WorkspaceClose>(frame.payload)->number);
    }
    return std::nullopt;
  });
  const auto other = pool_->OpenWorkspace(4096);
  ASSERT_TRUE(other);
  daemon_->Send(FrameOf(wire::WorkspaceReply{4096, wire::DeviceKind::kHost}, late));
  // No other call is made.
  daemon_->WaitForRequests(wire::MessageType::kWorkspaceClose, 1);
  EXPECT_THAT(*closed, ElementsAre(0));
  const auto again = pool_->OpenWorkspace(4096);
  ASSERT_TRUE(again);
  EXPECT_THAT(*opened, ElementsAre(1, 0));
}

TEST_F(AttentionTest, ASequencesBlocksAreThoseOfItsTable) {
  Attach();
  auto sequence = pool_->OpenSequence(Tokens(10));
  ASSERT_TRUE(sequence);
  ASSERT_TRUE(sequence->Wait());
  const auto table = sequence->BlockTable();
  const auto blocks = sequence->Blocks(3);
  ASSERT_TRUE(table && blocks);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*blocks)[i].index, static_cast<uint32_t>((*table)[i]));
    EXPECT_EQ((*blocks)[i].attachment, sequence->Info().attachment);
  }
  EXPECT_EQ(sequence->Blocks(table->size() + 1).error().code, KVT_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvtier::client
