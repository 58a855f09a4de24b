// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/load_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <vector>

#include "protocol/block_messages.h"
#include "protocol/socket_io.h"

namespace kvtier {
namespace {

class SilentListener final : public ConnectionListener {
 public:
  void OnFrame(const wire::Frame&) override {}
  void OnClosed(const Error&) override {}
};

class LoadEventsTest : public testing::Test {
 protected:
  LoadEventsTest() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    client_ = UniqueFd(fds[0]);
    connection_ = std::make_unique<Connection>(
        &network_, "tenant", UniqueFd(fds[1]),
        ConnectionLimits{.max_outbound_bytes = 1 << 20, .slow_reader_timeout_ms = 60'000},
        &listener_);
    events_ = std::make_unique<LoadEvents>(&loop_, connection_.get());
  }

  void Report(uint64_t load, uint32_t ready, bool finished = false) {
    events_->Report({.load = LoadId(load), .ready = ready, .finished = finished});
  }

  // The next event, if it is there already.
  std::optional<LoadProgress> Next() {
    while (true) {
      auto frame = decoder_.Next().value();
      if (frame) return wire::Decode<wire::LoadProgress>(frame->payload).value().progress;
      const auto bytes = wire::Receive(client_.get(), decoder_.Prepare(), nullptr).value();
      if (!bytes) return std::nullopt;
      decoder_.Commit(*bytes);
    }
  }
  // Lets the loop run until the next event comes.
  LoadProgress Wait() {
    std::optional<LoadProgress> event;
    loop_.RunUntil([&] { return (event = Next()).has_value(); });
    return *event;
  }

  EventLoop loop_;
  Network network_{&loop_};
  SilentListener listener_;
  UniqueFd client_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<LoadEvents> events_;
  wire::FrameDecoder decoder_;
};

TEST_F(LoadEventsTest, FirstReadyBlockIsToldAtOnce) {
  Report(7, 1);
  const auto event = Next();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->load, LoadId(7));
  EXPECT_EQ(event->ready, 1u);
  EXPECT_FALSE(event->finished);
}

TEST_F(LoadEventsTest, WhatFollowsQuicklyIsToldTogether) {
  for (uint32_t ready = 1; ready <= 100; ++ready) Report(7, ready);
  EXPECT_EQ(Next()->ready, 1u);
  EXPECT_FALSE(Next());
  EXPECT_EQ(Wait().ready, 100u);
  EXPECT_FALSE(Next());
}

TEST_F(LoadEventsTest, EndIsToldAtOnceAndLast) {
  Report(7, 1);
  Report(7, 2);
  Report(7, 3, /*finished=*/true);
  EXPECT_EQ(Next()->ready, 1u);
  const auto last = Next();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->ready, 3u);
  EXPECT_TRUE(last->finished);
  // Progress that had waited is not told after the end.
  Report(8, 1);
  Report(8, 2);
  EXPECT_EQ(Wait().load, LoadId(8));
  EXPECT_EQ(Wait().load, LoadId(8));
}

TEST_F(LoadEventsTest, LoadsDoNotHoldEachOtherUp) {
  for (uint64_t load = 1; load <= 50; ++load) {
    Report(load, 1);
    Report(load, 2);
  }
  for (uint64_t load = 1; load <= 50; ++load) EXPECT_EQ(Next()->ready, 1u);
  EXPECT_FALSE(Next());
  EXPECT_EQ(Wait().ready, 2u);
  for (uint64_t load = 2; load <= 50; ++load) EXPECT_EQ(Next()->ready, 2u);
}

TEST_F(LoadEventsTest, AClientThatDoesNotReadIsToldTheLastOfEachLoadWhenItReads) {
  constexpr uint32_t kReports = 10;
  for (uint64_t load = 1; !connection_->congested(); ++load) Report(load, 1);
  for (uint32_t ready = 2; ready <= kReports; ++ready) {
    Report(1, ready);
    Timer pace(&loop_);
    bool over = false;
    pace.Start(2 * kLoadEventIntervalMs, [&] { over = true; });
    loop_.RunUntil([&] { return over; });
  }
  std::vector<uint32_t> told;
  loop_.RunUntil([&] {
    while (const auto event = Next()) {
      if (event->load == LoadId(1)) told.push_back(event->ready);
    }
    return !told.empty() && told.back() == kReports;
  });
  EXPECT_THAT(told, testing::ElementsAre(1, kReports));
}

}  // namespace
}  // namespace kvtier
