// SPDX-License-Identifier: Apache-2.0
// The library's store against a server that checks signatures and answers as the test says.
#include "daemon/cold/s3/s3_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/s3_server.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

using testing::HasSubstr;

const auto kNoAnswer = testing::AnyOf(KVT_COLD_LATE, KVT_COLD_UNAVAILABLE);
constexpr int64_t kTimeoutMs = 60'000;
constexpr int64_t kShortMs = 200;
const std::string kName = "kvtier/1/alice%2F~x/model-4096/abcdef";

class S3StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    Credentials("AKIDTEST", "secret/+of=tests");
    Open(server_.Endpoint());
  }
  // Before the server, whose scripts may wait for the store's end.
  void TearDown() override { store_.reset(); }

  void Open(const std::string& endpoint) {
    auto parsed = S3Endpoint::Parse(endpoint);
    ASSERT_TRUE(parsed);
    store_ = std::make_unique<S3Store>(*std::move(parsed), file_, &S3StoreTest::OnDone, this);
  }
  // Writes them to the file, as a program does that renews them.
  void Credentials(const std::string& key_id, const std::string& secret,
                   const std::string& token = {}) {
    std::ofstream(file_ + ".new") << "[other]\naws_access_key_id = no\n[default]\n"
                                  << "aws_access_key_id = " << key_id
                                  << "\naws_secret_access_key=" << secret << '\n'
                                  << (token.empty() ? "" : "aws_session_token = " + token + "\n");
    std::filesystem::rename(file_ + ".new", file_);
  }
  using Waiting = std::future<S3Outcome>;
  // A call's number, and its end to come.
  std::pair<uint64_t, Waiting> Begin() {
    const std::lock_guard lock(mutex_);
    const uint64_t number = ++last_;
    return {number, ends_[number].get_future()};
  }
  Waiting Get(const std::string& name, std::string* into, int64_t timeout_ms = kTimeoutMs) {
    auto [number, end] = Begin();
    store_->Get(number, name, into->data(), into->size() - 1, timeout_ms);
    return std::move(end);
  }
  Waiting Put(const std::string& name, const std::string& bytes, int64_t timeout_ms = kTimeoutMs,
              bool replaces = false) {
    auto [number, end] = Begin();
    const std::string& kept = kept_.emplace_back(bytes);
    store_->Put(number, name, kept.data(), kept.size(), /*ttl_s=*/60, replaces, timeout_ms);
    return std::move(end);
  }
  Waiting Exists(std::vector<std::string> names, bool each, int64_t timeout_ms = kTimeoutMs) {
    auto [number, end] = Begin();
    store_->Exists(number, std::move(names), each, timeout_ms);
    return std::move(end);
  }
  Waiting Remove(const std::vector<std::string>& names) {
    auto [number, end] = Begin();
    store_->Remove(number, names, kTimeoutMs);
    return std::move(end);
  }
  Waiting RemoveSome(const std::string& prefix, uint64_t cursor = 0) {
    auto [number, end] = Begin();
    store_->RemoveSome(number, prefix, cursor, kTimeoutMs);
    return std::move(end);
  }
  static uint64_t CursorOf(const S3Outcome& outcome) {
    uint64_t cursor = UINT64_MAX;
    if (outcome.text.size() == sizeof(cursor)) {
      std::memcpy(&cursor, outcome.text.data(), sizeof(cursor));
    }
    return cursor;
  }
  static std::vector<std::string> Numbered(size_t count) {
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) names.push_back("kvtier/1/a/m/" + std::to_string(1000 + i));
    return names;
  }
  // Bytes that show where a piece is missing.
  static std::string Counted(size_t bytes) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
    return text;
  }

 private:
  static void OnDone(void* context, uint64_t call, int status, const void* data, size_t bytes,
                     int /*more*/) {
    auto* const test = static_cast<S3StoreTest*>(context);
    S3Outcome outcome{.status = status, .text = {}, .bytes = bytes};
    if (data != nullptr) outcome.text.assign(static_cast<const char*>(data), bytes);
    const std::lock_guard lock(test->mutex_);
    test->ends_.at(call).set_value(std::move(outcome));
  }

  TestDirectory directory_;
  std::list<std::string> kept_;  // as long as calls read them
  std::mutex mutex_;
  std::map<uint64_t, std::promise<S3Outcome>> ends_;
  uint64_t last_ = 0;

 protected:
  const std::string file_ = directory_.path().string() + "/credentials";
  S3Server server_;
  std::unique_ptr<S3Store> store_;
};

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
  for (Waiting& end : ends) EXPECT_THAT(end.get().status, kNoAnswer);
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
  for (Waiting& end : ends) EXPECT_EQ(end.get().status, KVT_COLD_LATE);
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

TEST_F(S3StoreTest, AnErasureDeletesATenantsObjectsAndNoOthers) {
  for (const std::string& name : Numbered(600)) server_.Set(name, "x");
  server_.Set("kvtier/1/a/m/odd name+%&<>", "x");
  server_.Set("kvtier/1/aa/m/other", "x");
  uint64_t cursor = 0;
  int calls = 0;
  do {
    const S3Outcome outcome = RemoveSome("kvtier/1/a/", cursor).get();
    ASSERT_EQ(outcome.status, KVT_COLD_OK) << outcome.text;
    cursor = CursorOf(outcome);
    ++calls;
  } while (cursor != 0);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(server_.Names(), std::vector<std::string>{"kvtier/1/aa/m/other"});
}

TEST_F(S3StoreTest, AListOfOthersObjectsGetsNoneDeleted) {
  server_.Set("kvtier/1/other/m/1", "x");
  server_.Play([](const S3ServerRequest& request) -> std::optional<S3ServerReply> {
    if (request.query.empty()) return std::nullopt;
    return S3ServerReply{.body =
                             "<ListBucketResult><IsTruncated>false</IsTruncated>"
                             "<Key>kvtier/1/a/m/1</Key><Key>kvtier/1/other/m/1</Key>"};
  });
  EXPECT_EQ(RemoveSome("kvtier/1/a/").get().status, KVT_COLD_REFUSED);
  EXPECT_EQ(server_.Names().size(), 1u);
  server_.Play([](const S3ServerRequest&) { return S3ServerReply{.body = "<html>hello"}; });
  EXPECT_EQ(RemoveSome("kvtier/1/a/").get().status, KVT_COLD_REFUSED);
}

// Each deletion lets another host write, where the erasure has been.
TEST_F(S3StoreTest, AnErasureEndsWhileOtherHostsWriteAsFastAsItDeletes) {
  for (const std::string& name : Numbered(600)) server_.Set(name, "x");
  std::atomic<int> written = 1000;
  server_.Play([&](const S3ServerRequest& request) -> std::optional<S3ServerReply> {
    if (request.method == "DELETE") {
      server_.Set("kvtier/1/a/m/0" + std::to_string(written++), "x");
    }
    return std::nullopt;
  });
  uint64_t cursor = 0;
  int calls = 0;
  do {
    const S3Outcome outcome = RemoveSome("kvtier/1/a/", cursor).get();
    ASSERT_EQ(outcome.status, KVT_COLD_OK) << outcome.text;
    cursor = CursorOf(outcome);
  } while (++calls < 10 && cursor != 0);
  EXPECT_EQ(calls, 3);
  for (const std::string& name : Numbered(600)) EXPECT_FALSE(server_.Find(name)) << name;
}

TEST_F(S3StoreTest, APartOfAnErasureThatFailedIsTakenAgain) {
  for (const std::string& name : Numbered(600)) server_.Set(name, "x");
  const uint64_t second = CursorOf(RemoveSome("kvtier/1/a/").get());
  server_.Play([](const S3ServerRequest& request) -> std::optional<S3ServerReply> {
    if (!request.path.ends_with("1300")) return std::nullopt;
    return S3ErrorReply(500, "InternalError");
  });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(RemoveSome("kvtier/1/a/", second).get().status, KVT_COLD_UNAVAILABLE);
    EXPECT_EQ(server_.Names().front(), "kvtier/1/a/m/1300");
  }
  server_.Play(nullptr);
  EXPECT_EQ(CursorOf(RemoveSome("kvtier/1/a/", second).get()), 0u);
  EXPECT_EQ(server_.Names(), std::vector<std::string>());
}

TEST_F(S3StoreTest, AListThatComesNoFurtherFailsAnErasure) {
  const auto plays = [&](const std::string& names) {
    server_.Play([names](const S3ServerRequest& request) -> std::optional<S3ServerReply> {
      if (request.query.empty()) return std::nullopt;
      return S3ServerReply{.body = "<ListBucketResult><IsTruncated>true</IsTruncated>" + names};
    });
  };
  plays("");
  EXPECT_EQ(RemoveSome("kvtier/1/a/").get().status, KVT_COLD_REFUSED);
  plays("<Key>kvtier/1/a/m/2</Key><Key>kvtier/1/a/m/1</Key>");
  EXPECT_EQ(RemoveSome("kvtier/1/a/").get().status, KVT_COLD_REFUSED) << "it has no order";
  plays("<Key>kvtier/1/a/m/1</Key><Key>kvtier/1/a/m/2</Key>");
  const S3Outcome first = RemoveSome("kvtier/1/a/").get();
  ASSERT_EQ(first.status, KVT_COLD_OK);
  EXPECT_EQ(RemoveSome("kvtier/1/a/", CursorOf(first)).get().status, KVT_COLD_REFUSED);
}

TEST_F(S3StoreTest, ABucketThatKeepsVersionsFailsAnErasure) {
  server_.Set("kvtier/1/a/m/1", "x");
  server_.Play([](const S3ServerRequest& request) -> std::optional<S3ServerReply> {
    if (request.method != "DELETE") return std::nullopt;
    return S3ServerReply{.status = 204, .headers = {"x-amz-delete-marker: true"}};
  });
  const S3Outcome outcome = RemoveSome("kvtier/1/a/").get();
  EXPECT_EQ(outcome.status, KVT_COLD_REFUSED);
  EXPECT_THAT(outcome.text, HasSubstr("keeps versions"));
}

TEST_F(S3StoreTest, AnErasureWaitsForWritesThatWereSentBefore) {
  std::promise<void> over;
  std::atomic<bool> is_listed = false;
  server_.Play([&, late = over.get_future().share()](
                   const S3ServerRequest& request) -> std::optional<S3ServerReply> {
    if (request.method == "PUT") late.wait();
    if (!request.query.empty()) is_listed = true;
    return std::nullopt;
  });
  Waiting put = Put("kvtier/1/a/m/1", "x");
  Waiting erased = RemoveSome("kvtier/1/a/");
  Waiting later = Put("kvtier/1/b/m/1", "x");
  EXPECT_FALSE(is_listed);
  over.set_value();
  EXPECT_EQ(put.get().status, KVT_COLD_OK);
  EXPECT_EQ(CursorOf(erased.get()), 0u);
  EXPECT_EQ(later.get().status, KVT_COLD_OK);
  EXPECT_EQ(server_.Names(), std::vector<std::string>{"kvtier/1/b/m/1"});
}

// The server has all of its bytes, and stores them when it likes.
TEST_F(S3StoreTest, AnErasureOrDeletionDoesNotEndWellWhileAPutThatWasGivenUpMayCome) {
  std::promise<void> over;
  std::atomic<bool> has_come = false;
  server_.Play([&, late = over.get_future().share()](
                   const S3ServerRequest& request) -> std::optional<S3ServerReply> {
    if (request.method == "PUT" && (has_come = true)) late.wait();
    return std::nullopt;
  });
  for (int64_t timeout_ms = kShortMs; !has_come; timeout_ms *= 2)
    EXPECT_EQ(Put(kName, "x", timeout_ms).get().status, KVT_COLD_LATE);
  EXPECT_EQ(RemoveSome("kvtier/1/alice%2F~x/").get().status, KVT_COLD_BUSY);
  EXPECT_EQ(Remove({"another", kName}).get().status, KVT_COLD_BUSY);
  EXPECT_EQ(RemoveSome("kvtier/1/alice/").get().status, KVT_COLD_OK) << "another tenant";
  EXPECT_EQ(Remove({"another"}).get().status, KVT_COLD_OK);
  over.set_value();
}

TEST_F(S3StoreTest, ATryThatNoServerAnsweredMayComeHoweverTheNextOneEnds) {
  for (const int status : {0, 503}) {
    store_.reset();
    Open(server_.Endpoint());
    ASSERT_EQ(Put("first", "x").get().status, KVT_COLD_OK);
    std::atomic<bool> is_first = true;
    server_.Play([&](const S3ServerRequest&) {
      if (!is_first.exchange(false)) return S3ErrorReply(403, "AccessDenied");
      if (status == 0) server_.EndConnections();
      return S3ServerReply{.status = status};
    });
    EXPECT_EQ(Put(kName, "x").get().status, KVT_COLD_REFUSED);
    server_.Play(nullptr);
    EXPECT_EQ(RemoveSome("kvtier/1/alice%2F~x/").get().status, KVT_COLD_BUSY) << status;
  }
}

TEST_F(S3StoreTest, APutThatTheStoreItselfRefusedDoesNotCome) {
  for (const auto& [status, code] : {std::pair(403, "AccessDenied"), {503, "SlowDown"}}) {
    server_.Play([&](const S3ServerRequest&) { return S3ErrorReply(status, code); });
    EXPECT_NE(Put(kName, "x").get().status, KVT_COLD_OK);
    server_.Play(nullptr);
    EXPECT_EQ(RemoveSome("kvtier/1/alice%2F~x/").get().status, KVT_COLD_OK) << code;
  }
}

TEST_F(S3StoreTest, ADeletionThatFailsTellsItsOwnReasonBesideAPutThatMayCome) {
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(500, "InternalError"); });
  ASSERT_EQ(Put(kName, "x").get().status, KVT_COLD_UNAVAILABLE);
  EXPECT_EQ(Remove({kName}).get().status, KVT_COLD_UNAVAILABLE);
}

TEST_F(S3StoreTest, AnErasureDeletesAllBeforeItFailsForAPutThatMayCome) {
  for (const std::string& name : Numbered(300)) server_.Set(name, "x");
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(500, "InternalError"); });
  ASSERT_EQ(Put("kvtier/1/a/m/late", "x").get().status, KVT_COLD_UNAVAILABLE);
  server_.Play(nullptr);
  const S3Outcome first = RemoveSome("kvtier/1/a/").get();
  ASSERT_EQ(first.status, KVT_COLD_OK);
  EXPECT_EQ(RemoveSome("kvtier/1/a/", CursorOf(first)).get().status, KVT_COLD_BUSY);
  EXPECT_EQ(server_.Names(), std::vector<std::string>());
}

}  // namespace
}  // namespace kvtier
