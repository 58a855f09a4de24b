// SPDX-License-Identifier: Apache-2.0
// The circuit breaker, the guard in front of a store, and what an object says of itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_cold_store.h"
#include "tests/fakes/fake_loop.h"
#include "tiers/cold/circuit_breaker.h"
#include "tiers/cold/cold_object.h"
#include "tiers/cold/guarded_store.h"

namespace kvtier {
namespace {

TEST(CircuitBreaker, OpensAfterFailuresInARow) {
  FakeClock clock;
  CircuitBreaker breaker(&clock);
  breaker.RequestEnded(false);
  breaker.RequestEnded(false);
  breaker.RequestEnded(true);
  breaker.RequestEnded(false);
  breaker.RequestEnded(false);
  EXPECT_TRUE(breaker.Passes());
  breaker.RequestEnded(false);
  EXPECT_FALSE(breaker.Passes());
  EXPECT_EQ(breaker.openings(), 1u);
}

TEST(CircuitBreaker, IsClosedAgainByAProbeThatSucceeds) {
  FakeClock clock;
  CircuitBreaker breaker(&clock);
  for (int i = 0; i < 3; ++i) breaker.RequestEnded(false);
  EXPECT_FALSE(breaker.TakeProbe());
  clock.Advance(CircuitBreaker::kFirstWaitMs);
  EXPECT_TRUE(breaker.TakeProbe());
  EXPECT_FALSE(breaker.TakeProbe()) << "one probe at a time";
  EXPECT_EQ(breaker.state(), CircuitBreaker::State::kHalfOpen);
  breaker.ProbeEnded(true);
  EXPECT_TRUE(breaker.Passes());
}

TEST(CircuitBreaker, WaitsLongerAfterEachProbeThatFails) {
  FakeClock clock;
  CircuitBreaker breaker(&clock);
  for (int i = 0; i < 3; ++i) breaker.RequestEnded(false);
  clock.Advance(CircuitBreaker::kFirstWaitMs);
  ASSERT_TRUE(breaker.TakeProbe());
  breaker.ProbeEnded(false);
  clock.Advance(CircuitBreaker::kFirstWaitMs);
  EXPECT_FALSE(breaker.TakeProbe());
  clock.Advance(CircuitBreaker::kFirstWaitMs);
  EXPECT_TRUE(breaker.TakeProbe());
}

TEST(CircuitBreaker, TakesNoNoticeOfLateAnswersWhenItIsOpen) {
  FakeClock clock;
  CircuitBreaker breaker(&clock);
  for (int i = 0; i < 3; ++i) breaker.RequestEnded(false);
  breaker.RequestEnded(true);
  EXPECT_FALSE(breaker.Passes());
}

// A probe is a short question; a store that answers these alone is asked ever more seldom.
TEST(CircuitBreaker, WaitsLongerWhereOnlyProbesSucceed) {
  FakeClock clock;
  CircuitBreaker breaker(&clock);
  int64_t waited_ms = CircuitBreaker::kFirstWaitMs;
  const auto flap = [&] {
    for (int i = 0; i < 3; ++i) breaker.RequestEnded(false);
    clock.Advance(waited_ms - 1);
    EXPECT_FALSE(breaker.TakeProbe());
    clock.Advance(1);
    ASSERT_TRUE(breaker.TakeProbe());
    breaker.ProbeEnded(true);
  };
  for (; waited_ms < 10'000; waited_ms *= 2) flap();
  breaker.RequestEnded(true);
  waited_ms = CircuitBreaker::kFirstWaitMs;
  flap();
}

class GuardedStoreTest : public ::testing::Test {
 protected:
  void Ask() {
    guarded_.Exists({"a"}, ColdAsk::kPrefix, 5, [this](const Result<std::vector<bool>>& answer) {
      last_ = answer ? "ok" : answer.error().reason;
    });
    loop_.RunAll();
  }
  void Put() {
    guarded_.Put("a", std::make_shared<ColdObject>(1), {}, 5,
                 [this](const Status& status) { last_ = status ? "ok" : status.error().reason; });
    loop_.RunAll();
  }

  FakeClock clock_;
  FakeLoop loop_;
  FakeColdStore store_{&loop_};
  GuardedStore guarded_{&store_, &clock_, &loop_};
  std::string last_;
};

TEST_F(GuardedStoreTest, AsksNoMoreAStoreThatHasFailedAndComesBackToIt) {
  store_.refuses = true;
  for (int i = 0; i < 3; ++i) Ask();
  EXPECT_EQ(last_, "no_connection");
  EXPECT_FALSE(guarded_.Available());
  const uint64_t asked = store_.questions;
  Ask();
  EXPECT_EQ(last_, "cold_store_away");
  EXPECT_EQ(store_.questions, asked);
  store_.refuses = false;
  clock_.Advance(CircuitBreaker::kFirstWaitMs);
  EXPECT_FALSE(guarded_.Available()) << "the probe is under way";
  loop_.RunAll();
  EXPECT_TRUE(guarded_.Available());
  Ask();
  EXPECT_EQ(last_, "ok");
}

// One client's questions may fill the queue in front of a store that answers as fast as it can.
TEST_F(GuardedStoreTest, TakesCallsThatAreLateWhileOthersAreAnsweredForNoOutage) {
  const auto ask_in_vain = [&] {
    store_.holds = true;
    for (int i = 0; i < 5; ++i) Ask();
    store_.holds = false;
  };
  ask_in_vain();
  Ask();
  EXPECT_EQ(last_, "ok");
  store_.TimeOut();
  loop_.RunAll();
  EXPECT_EQ(last_, "cold_store_late");
  Ask();
  EXPECT_EQ(last_, "ok");

  ask_in_vain();
  store_.TimeOut();
  loop_.RunAll();
  Ask();
  EXPECT_EQ(last_, kColdStoreAway);
}

// A store may look names up and hang at the objects' bytes.
TEST_F(GuardedStoreTest, TakesAnsweredLookupsForNoAnswerToReads) {
  store_.holds = true;
  for (int i = 0; i < 3; ++i) guarded_.Get("a", 1, 5, [](const Result<ColdBytes>&) {});
  store_.holds = false;
  Ask();
  EXPECT_EQ(last_, "ok");
  store_.TimeOut();
  loop_.RunAll();
  Ask();
  EXPECT_EQ(last_, kColdStoreAway);
}

TEST_F(GuardedStoreTest, TellsOnceThatTheStoreIsAwayAndOnceThatItIsBack) {
  std::vector<std::string> told;
  GuardedStore guarded(&store_, &clock_, &loop_, [&](const Status& away) {
    told.push_back(away ? "back" : away.error().reason);
  });
  const auto ask = [&] {
    guarded.Exists({"a"}, ColdAsk::kPrefix, 5, [](const Result<std::vector<bool>>&) {});
    loop_.RunAll();
  };
  store_.refuses = true;
  for (int i = 0; i < 10; ++i) ask();
  // A probe that fails is no news.
  clock_.Advance(CircuitBreaker::kFirstWaitMs);
  ask();
  EXPECT_THAT(told, testing::ElementsAre("no_connection"));
  store_.refuses = false;
  clock_.Advance(CircuitBreaker::kLongestWaitMs);
  ask();
  EXPECT_THAT(told, testing::ElementsAre("no_connection", "back"));
}

TEST_F(GuardedStoreTest, WritesThatFailStopNoReads) {
  store_.refuses = true;
  for (int i = 0; i < 3; ++i) Put();
  EXPECT_EQ(last_, "no_connection");
  store_.refuses = false;
  EXPECT_TRUE(guarded_.Available());
  Ask();
  EXPECT_EQ(last_, "ok");
  EXPECT_FALSE(guarded_.TakesWrites());
  Put();
  EXPECT_EQ(last_, "cold_store_away");
  guarded_.Delete({"a"}, 5, [this](const Status& status) { last_ = status ? "ok" : ""; });
  loop_.RunAll();
  EXPECT_EQ(last_, "ok");
  clock_.Advance(CircuitBreaker::kFirstWaitMs);
  EXPECT_FALSE(guarded_.TakesWrites()) << "the probe is under way";
  loop_.RunAll();
  EXPECT_TRUE(guarded_.TakesWrites());
  Put();
  EXPECT_EQ(last_, "ok");
}

TEST_F(GuardedStoreTest, ReadsThatFailStopWritesToo) {
  store_.refuses = true;
  for (int i = 0; i < 3; ++i) Ask();
  EXPECT_FALSE(guarded_.TakesWrites());
  Put();
  EXPECT_EQ(last_, "cold_store_away");
}

// This host has too much under way, perhaps of calls that the store does not end.
TEST_F(GuardedStoreTest, TakesACallThatWasNotSentForNoSuccess) {
  store_.refuses = true;
  const Error gone = store_.refusal;
  const Error busy = {ErrorCode::kResourceExhausted, "cold_store_busy", ""};
  const Error unsent = {ErrorCode::kTimeout, std::string(kColdCallUnsent), ""};
  for (const Error& refusal : {gone, busy, gone, unsent, unsent, unsent}) {
    store_.refusal = refusal;
    Ask();
    EXPECT_TRUE(guarded_.Available());
  }
  store_.refusal = gone;
  Ask();
  EXPECT_FALSE(guarded_.Available());
}

TEST_F(GuardedStoreTest, TakesAProbeThatWasNotSentForNoSuccess) {
  store_.refuses = true;
  for (int i = 0; i < 3; ++i) Put();
  store_.kept = "kvtier/probe";
  store_.refusal = {ErrorCode::kResourceExhausted, "cold_store_busy", ""};
  store_.refuses = false;
  clock_.Advance(CircuitBreaker::kFirstWaitMs);
  EXPECT_FALSE(guarded_.TakesWrites()) << "the probe is under way";
  loop_.RunAll();
  EXPECT_FALSE(guarded_.TakesWrites());
  store_.refusal = {ErrorCode::kPermissionDenied, "cold_store_refuses", ""};
  clock_.Advance(CircuitBreaker::kLongestWaitMs);
  EXPECT_FALSE(guarded_.TakesWrites()) << "the probe is under way";
  loop_.RunAll();
  EXPECT_TRUE(guarded_.TakesWrites());
}

TEST_F(GuardedStoreTest, TakesAnAbsentObjectForNoFault) {
  for (int i = 0; i < 10; ++i) {
    guarded_.Get("nothing", 10, 5, [](const Result<ColdBytes>&) {});
    loop_.RunAll();
  }
  EXPECT_TRUE(guarded_.Available());
}

constexpr uint64_t kBlockBytes = 8192;

class ColdObjectTest : public ::testing::Test {
 protected:
  ColdObjectTest() : object_(ColdObjectBytes(kBlockBytes)) {
    expected_.identity = {.tenant = "alice", .block_bytes = kBlockBytes};
    expected_.identity.model.bytes[0] = 7;
    expected_.hash.bytes[3] = 9;
    expected_.tokens = 16;
    Seal(Header());
  }
  [[nodiscard]] SlotHeader Header() const {
    const std::span<const std::byte> payload = std::span(object_).subspan(kSlotHeaderBytes);
    return {.tenant = expected_.identity.tenant,
            .model = expected_.identity.model,
            .hash = expected_.hash,
            .payload_bytes = kBlockBytes,
            .payload_checksum = ChecksumPayload(payload),
            .tokens = expected_.tokens,
            .created_s = 100,
            .last_use_s = 200};
  }
  void Seal(const SlotHeader& header) {
    EncodeSlotHeader(header, std::span(object_).first<kSlotHeaderBytes>());
  }
  [[nodiscard]] MissReason Verdict() const { return CheckColdObject(expected_, object_).miss; }

  SlotExpectation expected_;
  std::vector<std::byte> object_;
};

TEST_F(ColdObjectTest, IsTheBlockThatItSays) {
  const ColdVerdict verdict = CheckColdObject(expected_, object_);
  EXPECT_EQ(verdict.miss, MissReason::kNone);
  EXPECT_EQ(verdict.created_s, 100u);
  EXPECT_EQ(verdict.last_use_s, 200u);
}

TEST_F(ColdObjectTest, IsRefusedWithAnyBitFlipped) {
  for (size_t byte = 0; byte < object_.size(); byte += 61) {
    object_[byte] ^= std::byte{4};
    EXPECT_NE(Verdict(), MissReason::kNone) << byte;
    object_[byte] ^= std::byte{4};
  }
}

TEST_F(ColdObjectTest, IsRefusedAtAnyOtherLength) {
  const std::vector<std::byte> whole = object_;
  for (const size_t size : {size_t{0}, size_t{1}, kSlotHeaderBytes, whole.size() - 1}) {
    object_.assign(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_NE(Verdict(), MissReason::kNone) << size;
  }
  object_ = whole;
  object_.push_back(std::byte{0});
  EXPECT_NE(Verdict(), MissReason::kNone);
}

TEST_F(ColdObjectTest, OfAnotherBlockTenantOrClassIsRefused) {
  SlotHeader header = Header();
  header.hash.bytes[0] ^= 1;
  Seal(header);
  EXPECT_EQ(Verdict(), MissReason::kIdentityMismatch);
  header = Header();
  header.tenant = "bob";
  Seal(header);
  EXPECT_EQ(Verdict(), MissReason::kIdentityMismatch);
  header = Header();
  header.retention = RetentionClass::kMemory;
  Seal(header);
  EXPECT_EQ(Verdict(), MissReason::kIdentityMismatch);
}

TEST(ColdName, KeepsTenantsApartWhateverTheirNames) {
  const BlockHash hash{};
  const auto name = [&](const std::string& tenant) {
    return ColdName({.tenant = tenant, .block_bytes = 1}, hash);
  };
  EXPECT_TRUE(name("a").starts_with("kvtier/1/a/"));
  EXPECT_TRUE(name("a/b").starts_with("kvtier/1/a%2Fb/"));
  EXPECT_NE(name("a/b"), name("a%2Fb"));
  EXPECT_NE(name("a*"), name("a"));
}

}  // namespace
}  // namespace kvtier
