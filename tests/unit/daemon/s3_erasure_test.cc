// SPDX-License-Identifier: Apache-2.0
// Deletions and erasures, and puts that were given up and may yet be stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cold/s3/s3_store.h"
#include "tests/fakes/s3_server.h"
#include "tests/unit/daemon/s3_under_test.h"

namespace kvtier {
namespace {

using testing::HasSubstr;

class S3ErasureTest : public S3StoreTest {};

TEST_F(S3ErasureTest, AnErasureDeletesATenantsObjectsAndNoOthers) {
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

TEST_F(S3ErasureTest, AListOfOthersObjectsGetsNoneDeleted) {
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
TEST_F(S3ErasureTest, AnErasureEndsWhileOtherHostsWriteAsFastAsItDeletes) {
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

TEST_F(S3ErasureTest, APartOfAnErasureThatFailedIsTakenAgain) {
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

TEST_F(S3ErasureTest, AListThatComesNoFurtherFailsAnErasure) {
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

TEST_F(S3ErasureTest, ABucketThatKeepsVersionsFailsAnErasure) {
  server_.Set("kvtier/1/a/m/1", "x");
  server_.Play([](const S3ServerRequest& request) -> std::optional<S3ServerReply> {
    if (request.method != "DELETE") return std::nullopt;
    return S3ServerReply{.status = 204, .headers = {"x-amz-delete-marker: true"}};
  });
  const S3Outcome outcome = RemoveSome("kvtier/1/a/").get();
  EXPECT_EQ(outcome.status, KVT_COLD_REFUSED);
  EXPECT_THAT(outcome.text, HasSubstr("keeps versions"));
}

TEST_F(S3ErasureTest, AnErasureWaitsForWritesThatWereSentBefore) {
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
TEST_F(S3ErasureTest, AnErasureOrDeletionDoesNotEndWellWhileAPutThatWasGivenUpMayCome) {
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

TEST_F(S3ErasureTest, ATryThatNoServerAnsweredMayComeHoweverTheNextOneEnds) {
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

TEST_F(S3ErasureTest, APutThatTheStoreItselfRefusedDoesNotCome) {
  for (const auto& [status, code] : {std::pair(403, "AccessDenied"), {503, "SlowDown"}}) {
    server_.Play([&](const S3ServerRequest&) { return S3ErrorReply(status, code); });
    EXPECT_NE(Put(kName, "x").get().status, KVT_COLD_OK);
    server_.Play(nullptr);
    EXPECT_EQ(RemoveSome("kvtier/1/alice%2F~x/").get().status, KVT_COLD_OK) << code;
  }
}

TEST_F(S3ErasureTest, ADeletionThatFailsTellsItsOwnReasonBesideAPutThatMayCome) {
  server_.Play([](const S3ServerRequest&) { return S3ErrorReply(500, "InternalError"); });
  ASSERT_EQ(Put(kName, "x").get().status, KVT_COLD_UNAVAILABLE);
  EXPECT_EQ(Remove({kName}).get().status, KVT_COLD_UNAVAILABLE);
}

TEST_F(S3ErasureTest, AnErasureDeletesAllBeforeItFailsForAPutThatMayCome) {
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
