// SPDX-License-Identifier: Apache-2.0
// A lane against a server that answers as the test says.
#include "daemon/cold/resp/resp_lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fakes/resp_server.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

struct Ended {
  bool complete = false;
  int status = KVT_COLD_OK;
  std::string failure;
  std::vector<RespReply> replies;
};

class RespLaneTest : public testing::Test {
 protected:
  void Start(RespServer::Answer answer) {
    const std::string path = directory_.path().string() + "/server";
    server_ = std::make_unique<RespServer>(path, std::move(answer));
    lane_ = std::make_unique<RespLane>(RespEndpoint{.host = path});
  }
  void TearDown() override {
    lane_.reset();
    server_.reset();
  }
  // So many commands of one call; what its reply says is copied to `into`.
  std::future<Ended> Ask(size_t commands, std::span<std::byte> into = {},
                         std::chrono::milliseconds timeout = std::chrono::minutes(1),
                         std::string tenant = {}) {
    const auto promise = std::make_shared<std::promise<Ended>>();
    const auto ended = std::make_shared<Ended>();
    RespCall call;
    for (size_t i = 0; i < commands; ++i) {
      call.words.emplace_back("GET");
      call.lengths.push_back(1);
    }
    call.into = into;
    call.tenant = std::move(tenant);
    call.deadline = std::chrono::steady_clock::now() + timeout;
    call.answered = [ended](size_t position, const RespReply& reply) {
      EXPECT_EQ(position, ended->replies.size());
      ended->replies.push_back(reply);
    };
    call.ended = [ended, promise](int status, const std::string& failure) {
      ended->complete = status == KVT_COLD_OK;
      ended->status = status;
      ended->failure = failure;
      promise->set_value(*ended);
    };
    lane_->Add(std::move(call));
    return promise->get_future();
  }
  static std::string Text(size_t bytes) {
    return "$" + std::to_string(bytes) + "\r\n" + std::string(bytes, 'x') + "\r\n";
  }

  TestDirectory directory_;
  std::unique_ptr<RespServer> server_;
  std::unique_ptr<RespLane> lane_;
};

TEST_F(RespLaneTest, ATextIsReceivedWhereTheCallWantsIt) {
  Start([](std::string_view) { return Text(1'000'000); });
  std::vector<std::byte> into(1'000'001);
  const Ended ended = Ask(1, into).get();
  ASSERT_TRUE(ended.complete);
  EXPECT_EQ(ended.replies[0].kind, RespReply::Kind::kText);
  EXPECT_EQ(ended.replies[0].bytes, 1'000'000u);
  EXPECT_EQ(into[0], std::byte{'x'});
  EXPECT_EQ(into[999'999], std::byte{'x'});
  EXPECT_EQ(into[1'000'000], std::byte{0});
}

TEST_F(RespLaneTest, ALongerTextIsCutOff) {
  Start([](std::string_view) { return Text(1'000); });
  std::vector<std::byte> into(100);
  const Ended ended = Ask(1, std::span(into).first(90)).get();
  ASSERT_TRUE(ended.complete);
  EXPECT_EQ(ended.replies[0].bytes, 90u);
  EXPECT_EQ(into[89], std::byte{'x'});
  EXPECT_EQ(into[90], std::byte{0});
}

TEST_F(RespLaneTest, ATextWithoutEndFailsTheCallInsteadOfFillingMemory) {
  Start([](std::string_view) { return "$1000000000000\r\n" + std::string(4 << 20, 'x'); });
  std::vector<std::byte> into(100);
  EXPECT_FALSE(Ask(1, into).get().complete);
}

// The server's answers to what came together are one stream, in pieces that end anywhere.
TEST_F(RespLaneTest, TextsThatFollowOneAnotherAreToldApartWhereverTheirPiecesEnd) {
  size_t asked = 0;
  std::string rest;
  Start([&](std::string_view received) {
    for (const char c : received) {
      if (c == '*') rest += Text(1 + 997 * asked++ % 70'000);
    }
    return std::exchange(rest, {});
  });
  constexpr size_t kMost = 70'000;
  std::vector<std::vector<std::byte>> into(200, std::vector<std::byte>(kMost + 1));
  std::vector<std::future<Ended>> calls;
  for (std::vector<std::byte>& one : into) calls.push_back(Ask(1, one));
  for (size_t i = 0; i < calls.size(); ++i) {
    const Ended ended = calls[i].get();
    ASSERT_TRUE(ended.complete) << i;
    const size_t bytes = 1 + 997 * i % 70'000;
    EXPECT_EQ(ended.replies[0].bytes, bytes);
    EXPECT_EQ(into[i][bytes - 1], std::byte{'x'});
    EXPECT_EQ(into[i][bytes], std::byte{0});
  }
}

TEST_F(RespLaneTest, AMissingTextAmongOthersLeavesTheseWhole) {
  size_t asked = 0;
  Start([&asked](std::string_view received) {
    std::string text;
    for (const char c : received) {
      if (c == '*') text += asked++ % 3 == 1 ? std::string("$-1\r\n") : Text(5'000);
    }
    return text;
  });
  std::vector<std::vector<std::byte>> into(60, std::vector<std::byte>(5'001));
  std::vector<std::future<Ended>> calls;
  for (std::vector<std::byte>& one : into) calls.push_back(Ask(1, one));
  for (size_t i = 0; i < calls.size(); ++i) {
    const Ended ended = calls[i].get();
    ASSERT_TRUE(ended.complete) << i;
    const bool missing = i % 3 == 1;
    EXPECT_EQ(ended.replies[0].bytes, missing ? 0u : 5'000u) << i;
    EXPECT_EQ(into[i][4'999], missing ? std::byte{0} : std::byte{'x'}) << i;
  }
}

TEST_F(RespLaneTest, ATextThatIsLongerThanItSaysEndsTheConnection) {
  Start([](std::string_view) { return std::string("$3\r\nabcdef\r\n"); });
  std::vector<std::byte> into(100);
  EXPECT_FALSE(Ask(1, into).get().complete);
}

TEST_F(RespLaneTest, RepliesOfAllKindsAreToldApart) {
  Start([](std::string_view) { return ":7\r\n+OK\r\n-ERR no\r\n$-1\r\n*2\r\n:1\r\n$1\r\nx\r\n"; });
  const Ended ended = Ask(5).get();
  ASSERT_TRUE(ended.complete);
  EXPECT_EQ(ended.replies[0].kind, RespReply::Kind::kInteger);
  EXPECT_EQ(ended.replies[0].integer, 7);
  EXPECT_EQ(ended.replies[1].kind, RespReply::Kind::kText);
  EXPECT_EQ(ended.replies[2].kind, RespReply::Kind::kError);
  EXPECT_EQ(ended.replies[3].kind, RespReply::Kind::kNothing);
  EXPECT_EQ(ended.replies[4].kind, RespReply::Kind::kList);
}

TEST_F(RespLaneTest, AnErrorOfTheServerIsNotTakenForBytes) {
  Start([](std::string_view) { return std::string("-ERR xxxxxxxxxx\r\n"); });
  std::vector<std::byte> into(100);
  const Ended ended = Ask(1, into).get();
  ASSERT_TRUE(ended.complete);
  EXPECT_EQ(ended.replies[0].kind, RespReply::Kind::kError);
  EXPECT_EQ(into[0], std::byte{0});
}

TEST_F(RespLaneTest, CallsAfterOneWhoseConnectionBrokeAreServedByANewOne) {
  bool broken = false;
  Start([&broken](std::string_view) {
    // The first answer ends in the middle.
    return std::exchange(broken, true) ? std::string(":1\r\n") : std::string();
  });
  EXPECT_FALSE(Ask(1).get().complete);
  EXPECT_TRUE(Ask(1).get().complete);
}

TEST_F(RespLaneTest, CallsBehindAnAnswerThatDripsBeyondItsTimeAreServedByANewConnection) {
  bool dripped = false;
  Start([&dripped](std::string_view) {
    return std::exchange(dripped, true) ? std::string(":1\r\n") : Text(600);
  });
  server_->Drip(std::chrono::milliseconds(100));
  std::vector<std::byte> into(601);
  std::string failure = "not sent in time";
  // A busy machine may come to it too late.
  for (int64_t ms = 500; failure == "not sent in time"; ms *= 2) {
    failure = Ask(1, into, std::chrono::milliseconds(ms)).get().failure;
  }
  EXPECT_EQ(failure, "no whole answer in time");
  EXPECT_TRUE(Ask(1).get().complete);
}

// As many are under way as may be, so that the others have to wait. The second takes minutes.
TEST_F(RespLaneTest, CallsThatWaitBehindSlowAnswersEndWhenTheyAreLate) {
  bool begun = false;
  Start([&begun](std::string_view received) {
    std::string text;
    for (const char c : received) {
      if (c == '*') text += std::exchange(begun, true) ? Text(10'000) : ":1\r\n";
    }
    return text;
  });
  server_->Drip(std::chrono::milliseconds(50));
  std::vector<std::future<Ended>> slow, late;
  for (int i = 0; i < 64; ++i) slow.push_back(Ask(1, {}, std::chrono::hours(1)));
  for (int i = 0; i < 64; ++i) late.push_back(Ask(1, {}, std::chrono::milliseconds(1)));
  EXPECT_EQ(late.back().get().status, KVT_COLD_UNSENT);
  EXPECT_EQ(slow[1].wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

TEST_F(RespLaneTest, NothingThatIsNoReplyIsBelieved) {
  Start([](std::string_view) { return std::string("HTTP/1.1 400 Bad Request\r\n\r\n"); });
  EXPECT_FALSE(Ask(1).get().complete);
}

TEST_F(RespLaneTest, ManyCallsAtOnceEndInTheirOrder) {
  size_t commands = 0;
  Start([&commands](std::string_view received) {
    std::string text;
    // Each command begins with its count of words.
    for (const char c : received) {
      if (c == '*') text += ":" + std::to_string(commands++) + "\r\n";
    }
    return text;
  });
  std::vector<std::future<Ended>> calls;
  for (int i = 0; i < 300; ++i) calls.push_back(Ask(1));
  for (int64_t i = 0; i < 300; ++i) {
    const Ended ended = calls[static_cast<size_t>(i)].get();
    ASSERT_TRUE(ended.complete);
    EXPECT_EQ(ended.replies[0].integer, i);
  }
}

// A server that is far away answers the first part as the last one arrives.
TEST_F(RespLaneTest, TheLongestQuestionOfATenantAloneIsSentAtOnce) {
  constexpr size_t kCommands = 4096, kOfACall = 256;
  size_t commands = 0;
  Start([&commands](std::string_view received) {
    for (const char c : received) commands += c == '*' ? 1 : 0;
    if (commands < kCommands) return std::string(RespServer::kLater);
    std::string text;
    for (size_t i = 0; i < kCommands; ++i) text += ":1\r\n";
    return text;
  });
  std::vector<RespCall> calls;
  std::promise<void> ended;
  size_t left = kCommands / kOfACall;
  for (size_t i = 0; i < kCommands / kOfACall; ++i) {
    RespCall& call = calls.emplace_back();
    call.words.assign(kOfACall, "GET");
    call.lengths.assign(kOfACall, 1);
    call.deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    call.answered = [](size_t, const RespReply&) {};
    call.ended = [&left, &ended](int status, const std::string&) {
      EXPECT_EQ(status, KVT_COLD_OK);
      if (--left == 0) ended.set_value();
    };
  }
  lane_->AddAll(std::move(calls));
  ended.get_future().wait();
}

TEST_F(RespLaneTest, AFloodOfOneTenantHoldsUpNoOthersCall) {
  constexpr size_t kMostBefore = 40 * 256;
  std::promise<void> begin, go_on;
  size_t commands = 0;
  Start([begun = begin.get_future().share(), goes_on = go_on.get_future().share(),
         &commands](std::string_view received) {
    begun.wait();
    std::string text;
    for (const char c : received) {
      if (c == '*') text += ":1\r\n";
      commands += c == '*' ? 1 : 0;
    }
    if (commands > kMostBefore) goes_on.wait();
    return text.empty() ? RespServer::kLater : text;
  });
  constexpr auto kTimeout = std::chrono::minutes(1);
  std::vector<std::future<Ended>> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(Ask(256, {}, kTimeout, "flood"));
  std::future<Ended> other = Ask(1, {}, kTimeout, "other");
  begin.set_value();
  EXPECT_EQ(other.wait_for(kTimeout), std::future_status::ready);
  go_on.set_value();
  const Ended end = other.get();
  EXPECT_TRUE(end.complete) << end.failure;
  for (std::future<Ended>& one : flood) EXPECT_TRUE(one.get().complete);
}

TEST_F(RespLaneTest, ACallWithoutCommandsEnds) {
  Start([](std::string_view) { return std::string(":1\r\n"); });
  EXPECT_TRUE(Ask(0).get().complete);
}

TEST_F(RespLaneTest, ACallThatIsNotAnsweredEndsWithTheLane) {
  std::promise<void> received;
  std::promise<void> over;
  // The server's thread may still be about to wait when the test is over.
  Start([&received, is_over = over.get_future().share()](std::string_view) {
    received.set_value();
    is_over.wait();
    return std::string();
  });
  std::future<Ended> call = Ask(1);
  received.get_future().wait();
  std::future<Ended> waiting = Ask(1);
  lane_.reset();
  over.set_value();
  EXPECT_FALSE(call.get().complete);
  EXPECT_FALSE(waiting.get().complete);
}

// The name server's thread outlives the lane, and the test.
TEST_F(RespLaneTest, ANameServerThatHangsHoldsUpNoEnd) {
  const auto asked = std::make_shared<std::promise<void>>();
  const auto over = std::make_shared<std::promise<void>>();
  lane_ = std::make_unique<RespLane>(RespEndpoint{.host = "store.example", .port = 6379},
                                     [asked, over](const std::string&) {
                                       asked->set_value();
                                       over->get_future().wait();
                                       return HostAddresses::Found();
                                     });
  std::future<Ended> call = Ask(1);
  asked->get_future().wait();
  lane_.reset();
  EXPECT_EQ(call.get().failure, "the store is being closed");
  over->set_value();
}

// One thread hangs at most.
TEST_F(RespLaneTest, ANameServerThatHangsIsToldAndAskedOnce) {
  const auto over = std::make_shared<std::promise<void>>();
  const auto asked = std::make_shared<std::atomic<int>>(0);
  lane_ = std::make_unique<RespLane>(RespEndpoint{.host = "store.example", .port = 6379},
                                     [asked, over](const std::string&) {
                                       ++*asked;
                                       over->get_future().wait();
                                       return HostAddresses::Found();
                                     });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Ask(1).get().failure, "the name server does not answer");
  }
  EXPECT_EQ(*asked, 1);
  over->set_value();
}

TEST_F(RespLaneTest, TheNextAddressIsTriedWhereOneRefuses) {
  server_ = std::make_unique<RespServer>([](std::string_view) { return std::string(":1\r\n"); });
  lane_ = std::make_unique<RespLane>(
      RespEndpoint{.host = "store.example", .port = server_->port()}, [](const std::string& host) {
        EXPECT_EQ(host, "store.example");
        return HostAddresses::Found{.addresses = {"127.0.0.2", "127.0.0.1"}, .error = {}};
      });
  EXPECT_EQ(Ask(1).get().failure, "");
}

TEST(HostAddresses, OfFiguresAreThese) {
  EXPECT_EQ(HostAddresses::ResolveBySystem("127.0.0.1").addresses,
            std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(HostAddresses::ResolveBySystem("::1").addresses, std::vector<std::string>{"::1"});
  const HostAddresses::Found none = HostAddresses::ResolveBySystem(std::string(300, 'x'));
  EXPECT_TRUE(none.addresses.empty());
  EXPECT_NE(none.error, "");
}

TEST_F(RespLaneTest, AListHasTheTextsOfTheListsInIt) {
  Start([](std::string_view) { return "*2\r\n$2\r\n17\r\n*2\r\n$1\r\na\r\n$2\r\nbc\r\n*0\r\n"; });
  const Ended ended = Ask(2).get();
  ASSERT_TRUE(ended.complete);
  EXPECT_EQ(ended.replies[0].kind, RespReply::Kind::kList);
  EXPECT_EQ(ended.replies[0].texts, (std::vector<std::string>{"17", "a", "bc"}));
  EXPECT_EQ(ended.replies[1].kind, RespReply::Kind::kList);
  EXPECT_EQ(ended.replies[1].texts, std::vector<std::string>());
}

TEST_F(RespLaneTest, AListOfTooManyTextsIsAnError) {
  Start([](std::string_view) {
    std::string text = "*70000\r\n";
    for (int i = 0; i < 70'000; ++i) text += "$1\r\nx\r\n";
    return text;
  });
  const Ended ended = Ask(1).get();
  ASSERT_TRUE(ended.complete);
  EXPECT_EQ(ended.replies[0].kind, RespReply::Kind::kError);
}

}  // namespace
}  // namespace kvtier
