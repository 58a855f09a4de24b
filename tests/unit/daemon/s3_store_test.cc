// SPDX-License-Identifier: Apache-2.0
// The library's store against a server that checks signatures and answers as the test says.
#include "daemon/cold/s3/s3_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/s3_server.h"
#include "tests/unit/daemon/s3_under_test.h"

namespace kvtier {
namespace {

using testing::HasSubstr;

TEST_F(S3StoreTest, AnObjectComesBackByteForByte) {
  for (const size_t bytes : {1ul, 65'537ul, 3ul << 20}) {
    const std::string object = Counted(bytes);
    const std::string name = kName + std::to_string(bytes);
    EXPECT_EQ(Put(name, object).get().status, KVT_COLD_OK);
    EXPECT_TRUE(server_.Find(name) == object) << "under its own name";
    std::string into(bytes + 1, 'x');
    const S3Outcome got = Get(name, &into).get();
    EXPECT_EQ(got.status, KVT_COLD_OK) << got.text;
    EXPECT_EQ(got.bytes, bytes);
    EXPECT_TRUE(into == object + 'x');
  }
}

TEST_F(S3StoreTest, AnObjectThatIsNotThereIsAbsent) {
  std::string into(11, 'x');
  EXPECT_EQ(Get(kName, &into).get().status, KVT_COLD_ABSENT);
  EXPECT_EQ(into, std::string(11, 'x'));
  EXPECT_EQ(Remove({kName}).get().status, KVT_COLD_OK);
}

TEST_F(S3StoreTest, AnObjectOfAnotherLengthIsToldByItsLength) {
  std::string into(101, 'x');
  server_.Set(kName, std::string(99, 'a'));
  EXPECT_EQ(Get(kName, &into).get().bytes, 99u);
  server_.Set(kName, std::string(5'000'000, 'a'));
  const S3Outcome longer = Get(kName, &into).get();
  EXPECT_EQ(longer.status, KVT_COLD_OK);
  EXPECT_EQ(longer.bytes, 101u) << "no more than there is room for";
  server_.Set(kName, "");
  EXPECT_EQ(Get(kName, &into).get().bytes, 0u);
}

TEST_F(S3StoreTest, AnAnswerThatEndsEarlyIsNoObject) {
  server_.Play([](const S3ServerRequest&) {
    return S3ServerReply{.body = std::string(100, 'a'), .headers = {}, .cut_at = 50};
  });
  std::string into(101, 'x');
  EXPECT_EQ(Get(kName, &into).get().status, KVT_COLD_UNAVAILABLE);
}

TEST_F(S3StoreTest, AnObjectThatAnotherHostHasWrittenIsLeftAsItIs) {
  ASSERT_EQ(Put(kName, "first").get().status, KVT_COLD_OK);
  EXPECT_EQ(Put(kName, "second").get().status, KVT_COLD_OK);
  EXPECT_EQ(server_.Find(kName), "first");
  EXPECT_EQ(Put(kName, "renewed", kTimeoutMs, /*replaces=*/true).get().status, KVT_COLD_OK);
  EXPECT_EQ(server_.Find(kName), "renewed");
  EXPECT_EQ(Remove({kName}).get().status, KVT_COLD_OK);
  EXPECT_EQ(Put(kName, "third").get().status, KVT_COLD_OK);
  EXPECT_EQ(server_.Find(kName), "third");
}

TEST_F(S3StoreTest, AServerThatKnowsNoConditionsIsSentPlainPutsFromThenOn) {
  for (const auto& [status, code] : {std::pair(501, "NotImplemented"), {400, "InvalidArgument"}}) {
    store_.reset();
    Open(server_.Endpoint());
    server_.Play([status, code](const S3ServerRequest& request) {
      const bool is_plain = !request.headers.contains("if-none-match");
      return is_plain ? std::nullopt : std::optional(S3ErrorReply(status, code));
    });
    const size_t before = server_.requests();
    for (const std::string& name : Numbered(5)) {
      EXPECT_EQ(Put(name, code).get().status, KVT_COLD_OK);
      EXPECT_EQ(server_.Find(name), code);
    }
    EXPECT_EQ(server_.requests() - before, 6u) << "it is asked once";
  }
}

TEST_F(S3StoreTest, ARefusalThatIsNotOfTheConditionLeavesIt) {
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(400, "EntityTooLarge"); });
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_REFUSED);
  EXPECT_EQ(server_.requests(), 2u);
  server_.Play(nullptr);
  ASSERT_EQ(Put(kName, "first").get().status, KVT_COLD_OK);
  EXPECT_EQ(Put(kName, "second").get().status, KVT_COLD_OK);
  EXPECT_EQ(server_.Find(kName), "first");
}

TEST_F(S3StoreTest, ConnectionsAreUsedAgain) {
  std::vector<Waiting> ends;
  const std::string object = Counted(10'000);
  for (const std::string& name : Numbered(300)) ends.push_back(Put(name, object));
  for (Waiting& end : ends) EXPECT_EQ(end.get().status, KVT_COLD_OK);
  EXPECT_EQ(server_.Names(), Numbered(300));
  EXPECT_LE(server_.connections(), 16u);
}

TEST_F(S3StoreTest, AnObjectIsSentAgainWhereTheServerHadEndedTheConnection) {
  const std::string object = Counted(1 << 20);
  ASSERT_EQ(Put("first", object).get().status, KVT_COLD_OK);
  server_.EndConnections();
  EXPECT_EQ(Put(kName, object).get().status, KVT_COLD_OK);
  EXPECT_EQ(server_.Find(kName), object);
}

TEST_F(S3StoreTest, APrefixIsToldUpToItsFirstGap) {
  const std::vector<std::string> names = Numbered(100);
  for (size_t i = 0; i < 80; ++i) {
    if (i < 50 || i >= 66) server_.Set(names[i], "x");
  }
  const S3Outcome outcome = Exists(names, false).get();
  EXPECT_EQ(outcome.text, std::string(50, 1) + std::string(50, 0));
  const S3Outcome each = Exists(names, true).get();
  EXPECT_EQ(each.text,
            std::string(50, 1) + std::string(16, 0) + std::string(14, 1) + std::string(20, 0));
  EXPECT_EQ(Exists({}, false).get().status, KVT_COLD_OK);
}

TEST_F(S3StoreTest, APrefixOfWhichNothingIsThereCostsFewRequests) {
  EXPECT_EQ(Exists(Numbered(1000), false).get().text, std::string(1000, 0));
  store_.reset();
  EXPECT_LE(server_.requests(), 4u);
}

TEST_F(S3StoreTest, ALateQuestionBehindOneWithMoreTimeIsNotSent) {
  server_.StandStill(true);
  std::vector<Waiting> in_time, late;
  for (int i = 0; i < 33; ++i) in_time.push_back(Exists({"kvtier/1/a/m/in-time"}, false));
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kShortMs);
  for (int i = 0; i < 32; ++i) late.push_back(Exists({"kvtier/1/a/m/late"}, true, kShortMs));
  std::atomic<size_t> sent = 0;
  server_.Play([&sent](const S3ServerRequest& request) {
    sent += request.path.find("late") != std::string::npos ? 1 : 0;
    return std::nullopt;
  });
  while (std::chrono::steady_clock::now() <= until) std::this_thread::yield();
  server_.StandStill(false);
  for (Waiting& end : in_time) EXPECT_EQ(end.get().status, KVT_COLD_OK);
  for (Waiting& end : late) EXPECT_EQ(end.get().status, KVT_COLD_UNSENT);
  EXPECT_EQ(sent, 0u);
}

TEST_F(S3StoreTest, AFloodOfQuestionsHoldsUpNoOtherTenants) {
  server_.Set("kvtier/1/bob/m/hash", "x");
  server_.StandStill(true);
  Waiting flood = Exists(Numbered(4000), true);
  Waiting other = Exists({"kvtier/1/bob/m/hash"}, false);
  std::promise<void> go_on;
  std::atomic<size_t> asked = 0;
  server_.Play([&asked, goes_on = go_on.get_future().share()](const S3ServerRequest&) {
    if (++asked > 1000) goes_on.wait();
    return std::nullopt;
  });
  server_.StandStill(false);
  EXPECT_EQ(other.wait_for(std::chrono::minutes(1)), std::future_status::ready);
  go_on.set_value();
  EXPECT_EQ(other.get().text, std::string(1, '\1'));
  EXPECT_EQ(flood.get().text, std::string(4000, '\0'));
}

TEST_F(S3StoreTest, APrefixOfWhichAllIsThereCostsFewRequests) {
  const std::vector<std::string> names = Numbered(1000);
  for (const std::string& name : names) server_.Set(name, "x");
  EXPECT_EQ(Exists(names, false).get().text, std::string(1000, 1));
  store_.reset();
  EXPECT_LE(server_.requests(), 70u);
}

// A server that answers late is told from one that has less.
TEST_F(S3StoreTest, APrefixIsToldAsFarAsItIsKnownInTime) {
  const std::vector<std::string> names = Numbered(40);
  for (const std::string& name : names) server_.Set(name, "x");
  std::promise<void> over;
  server_.Play([late = over.get_future().share()](
                   const S3ServerRequest& request) -> std::optional<S3ServerReply> {
    if (request.path.ends_with("1003")) late.wait();
    return std::nullopt;
  });
  EXPECT_EQ(Exists(names, false, 400).get().text, std::string(2, 1) + std::string(38, 0));
  over.set_value();
}

TEST_F(S3StoreTest, AnotherSecretIsRefusedAndTheFilesNewOneIsTaken) {
  Credentials("AKIDTEST", "wrong");
  const S3Outcome refused = Put(kName, "x").get();
  EXPECT_EQ(refused.status, KVT_COLD_UNAVAILABLE);
  EXPECT_THAT(refused.text, HasSubstr("SignatureDoesNotMatch"));
  Credentials("AKIDTEST", "secret/+of=tests");
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_OK);
}

TEST_F(S3StoreTest, CredentialsThatEndWhileACallIsUnderWayAreReplacedWithoutItsFailure) {
  server_.SetCredentials("AKIDNEW", "new", "token/of+session");
  bool is_renewed = false;
  server_.Play([&](const S3ServerRequest&) { return std::optional<S3ServerReply>(); });
  const S3Outcome expired = Put(kName, "x").get();
  EXPECT_EQ(expired.status, KVT_COLD_UNAVAILABLE);
  EXPECT_THAT(expired.text, HasSubstr("ExpiredToken"));
  Credentials("AKIDNEW", "new", "token/of+session");
  server_.Play([&](const S3ServerRequest&) -> std::optional<S3ServerReply> {
    if (std::exchange(is_renewed, true)) return std::nullopt;
    server_.SetCredentials("AKIDNEXT", "next", "next");
    Credentials("AKIDNEXT", "next", "next");
    return S3ErrorReply(400, "ExpiredToken");
  });
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_OK);
}

TEST_F(S3StoreTest, AFileThatIsAwayLeavesItsLastCredentials) {
  ASSERT_EQ(Put(kName, "x").get().status, KVT_COLD_OK);
  std::filesystem::remove(file_);
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_OK);
  std::ofstream(file_) << "half a fi";
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_OK);
}

TEST_F(S3StoreTest, NothingIsSentWithoutCredentials) {
  store_.reset();
  std::ofstream(file_ + ".new") << "[default]\naws_access_key_id = a\r\nb\n";
  std::filesystem::rename(file_ + ".new", file_);
  Open(server_.Endpoint());
  const S3Outcome outcome = Put(kName, "x").get();
  EXPECT_EQ(outcome.status, KVT_COLD_UNAVAILABLE);
  EXPECT_EQ(outcome.text, file_ + " has no credentials");
  EXPECT_EQ(server_.requests(), 0u);
}

// A question's answer has no room for a reason, and is asked for otherwise.
TEST_F(S3StoreTest, ClocksThatDifferAreToldWithTheDifference) {
  server_.SetClock(-2000);
  for (const S3Outcome& outcome : {Exists({kName}, false).get(), Put(kName, "x").get()}) {
    EXPECT_EQ(outcome.status, KVT_COLD_UNAVAILABLE);
    EXPECT_THAT(outcome.text, HasSubstr("RequestTimeTooSkewed"));
    EXPECT_THAT(outcome.text, testing::ContainsRegex("clock is (1999|2000|2001) s ahead of"));
  }
  server_.SetClock(2000);
  EXPECT_THAT(Put(kName, "x").get().text, HasSubstr("s behind the store's"));
}

TEST_F(S3StoreTest, AStoreThatAsksForLessIsAskedAgainLater) {
  std::atomic<int> refusals = 3;
  server_.Play([&](const S3ServerRequest&) -> std::optional<S3ServerReply> {
    if (refusals-- > 0) return S3ErrorReply(503, "SlowDown");
    return std::nullopt;
  });
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_OK);
  EXPECT_EQ(server_.requests(), 4u);
}

TEST_F(S3StoreTest, AStoreThatAlwaysAsksForLessIsUnavailable) {
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(503, "SlowDown"); });
  std::vector<Waiting> ends;
  for (const std::string& name : Numbered(64)) ends.push_back(Put(name, "x", 100));
  EXPECT_THAT(ends.front().get().status, kNoAnswer);
  ends.erase(ends.begin());
  for (Waiting& end : ends) {
    EXPECT_THAT(end.get().status, testing::AnyOf(kNoAnswer, KVT_COLD_UNSENT));
  }
  EXPECT_LT(server_.requests(), 64u) << "waits instead of asking";
}

TEST_F(S3StoreTest, AFailureOfTheServerIsItsUnavailability) {
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(500, "Internal\x1b[31mError\n"); });
  const S3Outcome outcome = Put(kName, "x").get();
  EXPECT_EQ(outcome.status, KVT_COLD_UNAVAILABLE);
  EXPECT_THAT(outcome.text, HasSubstr("HTTP 500 Internal?[31mError?")) << "a line of the log";
}

TEST_F(S3StoreTest, ARefusedWriteLeavesTheStoreAvailable) {
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(507, "XMinioStorageFull"); });
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_REFUSED);
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(403, "AccessDenied"); });
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_REFUSED);
  const S3Outcome question = Exists({kName}, false).get();
  EXPECT_EQ(question.status, KVT_COLD_UNAVAILABLE) << "it is of no use then";
  EXPECT_THAT(question.text, HasSubstr("AccessDenied"));
}

TEST_F(S3StoreTest, ABucketThatIsNotThereIsNoMiss) {
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(404, "NoSuchBucket"); });
  std::string into(11, 'x');
  EXPECT_EQ(Get(kName, &into).get().status, KVT_COLD_REFUSED);
}

TEST_F(S3StoreTest, ARedirectIsToldAndNotFollowed) {
  S3Server other;
  server_.Play([&other](const S3ServerRequest&) {
    S3ServerReply reply = S3ErrorReply(301, "PermanentRedirect");
    reply.headers = {"location: http://127.0.0.1:" + std::to_string(other.port()) + "/blocks/x",
                     "x-amz-bucket-region: eu-west-1"};
    return reply;
  });
  for (const S3Outcome& outcome : {Exists({kName}, false).get(), Put(kName, "x").get()}) {
    EXPECT_EQ(outcome.status, KVT_COLD_UNAVAILABLE);
    EXPECT_THAT(outcome.text, HasSubstr("in region eu-west-1"));
  }
  EXPECT_EQ(other.connections(), 0u);
}

TEST_F(S3StoreTest, AServerThatHangsHoldsACallUntilItsDeadlineOnly) {
  server_.StandStill(true);
  std::string into(11, 'x');
  std::vector<Waiting> ends;
  for (int i = 0; i < 100; ++i) ends.push_back(Get(kName, &into, kShortMs));
  ends.push_back(Exists({kName}, false, kShortMs));
  ends.push_back(Put(kName, "x", kShortMs));
  const auto in_a_queue_or_under_way = testing::AnyOf(KVT_COLD_LATE, KVT_COLD_UNSENT);
  for (Waiting& end : ends) EXPECT_THAT(end.get().status, in_a_queue_or_under_way);
  server_.StandStill(false);
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_OK);
}

TEST_F(S3StoreTest, AStoreIsClosedWhileItsServerHangs) {
  server_.StandStill(true);
  Waiting end = Put(kName, "x", /*timeout_ms=*/3'600'000);
  EXPECT_TRUE(store_->Stop());
  store_.reset();
  EXPECT_EQ(end.get().status, KVT_COLD_UNAVAILABLE);
  server_.StandStill(false);
}

TEST_F(S3StoreTest, AServerThatIsNotThereIsUnavailable) {
  store_.reset();
  Open("blocks?endpoint=http://127.0.0.1:1");
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_UNAVAILABLE);
}

TEST_F(S3StoreTest, AServerWithoutTlsHearsNothingWhereTlsIsAskedFor) {
  store_.reset();
  Open("blocks?endpoint=https://127.0.0.1:" + std::to_string(server_.port()));
  EXPECT_THAT(Put(kName, "x", 1000).get().status, kNoAnswer);
  EXPECT_EQ(server_.requests(), 0u);
}

TEST_F(S3StoreTest, AReasonWithoutEndFailsTheCallInsteadOfFillingMemory) {
  server_.Play([](const S3ServerRequest&) {
    return S3ServerReply{.status = 500, .body = std::string(16 << 20, 'x')};
  });
  EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_UNAVAILABLE);
}

}  // namespace
}  // namespace kvtier
