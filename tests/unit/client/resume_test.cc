// SPDX-License-Identifier: Apache-2.0
// Held blocks go on over the daemon's death: the client's claims from the next one, and the
// application's view of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/unit/client/resume_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(ResumeTest, ASequenceGoesOnWithItsBlocks) {
  auto sequence = pool_->OpenSequence(Tokens(10));
  ASSERT_TRUE(sequence);
  ASSERT_TRUE(sequence->MarkComputed(10));
  const auto table = *sequence->BlockTable();
  const kvt_sequence_info before = sequence->Info();
  daemon_->DieAndAdopt();
  ASSERT_TRUE(sequence->Append(Tokens(2, 2000)));
  EXPECT_EQ(*sequence->BlockTable(), table);
  EXPECT_EQ(sequence->Info().attachment, before.attachment);
  EXPECT_EQ(sequence->Info().base, before.base);
  EXPECT_EQ(sequence->Info().computed_tokens, 10u);
  ASSERT_EQ(resumes_.size(), 1u);
  EXPECT_EQ(resumes_[0].claims.size(), 3u);
  EXPECT_FALSE(resumes_[0].more);
  sequence = kvt::Sequence(nullptr);
  EXPECT_EQ(References(), 0u);
}

TEST_F(ResumeTest, ASequenceThatMissesABlockIsStaleAndOthersAreNot) {
  auto lost = pool_->OpenSequence(Tokens(6));
  auto whole = pool_->OpenSequence(Tokens(6, 5000));
  ASSERT_TRUE(lost && whole);
  const auto block = static_cast<uint32_t>(lost->BlockTable()->at(1));
  Lose(block);
  daemon_->DieAndAdopt();
  EXPECT_TRUE(whole->Check());
  ExpectStale(*lost);
  ExpectStale(*lost);
  const auto errors = connection_->TakeErrors();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].block.index, block);
  EXPECT_EQ(errors[0].code, KVT_STALE_HANDLE);
  EXPECT_STREQ(errors[0].reason, "lost_at_restart");
  // Closing it gives back the rest of its blocks, and only those.
  lost = kvt::Sequence(nullptr);
  EXPECT_EQ(References(), 2u);
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty());
}

TEST_F(ResumeTest, WhatTheDaemonHadNotHeardOfIsCommittedAgain) {
  auto sequence = pool_->OpenSequence(Tokens(9));
  ASSERT_TRUE(sequence);
  Swallow(wire::MessageType::kCommit);
  ASSERT_TRUE(sequence->MarkComputed(9));
  daemon_->WaitForRequests(wire::MessageType::kCommit, 1);
  Swallow({});
  daemon_->DieAndAdopt();
  ASSERT_TRUE(sequence->Check());
  ASSERT_TRUE(connection_->Ping());
  auto other = pool_->OpenSequence(Tokens(9));
  ASSERT_TRUE(other);
  EXPECT_EQ(other->cached_tokens(), 8u);
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty());
}

TEST_F(ResumeTest, ALoadEndsWithItsDaemonAndWhatHadArrivedStays) {
  auto first = pool_->OpenSequence(Tokens(13));
  ASSERT_TRUE(first);
  ASSERT_TRUE(first->MarkComputed(13));
  const auto third = static_cast<uint32_t>(first->BlockTable()->at(2));
  first = kvt::Sequence(nullptr);
  ASSERT_TRUE(connection_->Ping());
  daemon_->WithCache([&](FakeCache* cache) { cache->Sink(third); });
  auto again = pool_->OpenSequence(Tokens(13));
  ASSERT_TRUE(again);
  ASSERT_FALSE(again->Info().ready);
  daemon_->WithCache([&](FakeCache* cache) { cache->LoseLoad(); });
  daemon_->DieAndAdopt();
  ASSERT_TRUE(again->Wait());
  EXPECT_EQ(again->cached_tokens(), 8u);
  EXPECT_EQ(again->Info().miss, KVT_MISS_UNAVAILABLE);
  EXPECT_EQ(again->BlockTable()->size(), 4u);
}

TEST_F(ResumeTest, ALoadThatTheNextDaemonBeganGoesOn) {
  const std::vector<kvt_block> held = AcquireNew(1);
  auto first = pool_->OpenSequence(Tokens(6));
  ASSERT_TRUE(first);
  ASSERT_TRUE(first->MarkComputed(4));
  const auto cached = static_cast<uint32_t>(first->BlockTable()->at(0));
  first = kvt::Sequence(nullptr);
  ASSERT_TRUE(connection_->Ping());
  daemon_->WithCache([&](FakeCache* cache) { cache->Sink(cached); });
  daemon_->HoldBack(wire::MessageType::kAcquire);
  kvt::Sequence sequence(nullptr);
  std::thread opener([&] {
    auto opened = pool_->OpenSequence(Tokens(6));
    ASSERT_TRUE(opened) << opened.error().ToString();
    sequence = *std::move(opened);
  });
  (void)daemon_->WaitForHeldBack();
  daemon_->Intercept(nullptr);
  daemon_->DieAndAdopt();
  opener.join();
  ASSERT_FALSE(sequence.Info().ready);
  ASSERT_TRUE(sequence.Check());
  EXPECT_EQ(sequence.Wait(0).error().code, KVT_TIMEOUT);
  daemon_->Progress(LoadId{1}, 1, true);
  EXPECT_TRUE(sequence.Wait());
  EXPECT_EQ(sequence.cached_tokens(), 4u);
}

TEST_F(ResumeTest, HandlesStayGood) {
  const std::vector<kvt_block> blocks = AcquireNew(2);
  daemon_->DieAndAdopt();
  kvt_commit_entry entry{};
  entry.block = blocks[0];
  entry.hash = Hash(7);
  entry.tokens = kBlockTokens;
  entry.retention = KVT_RETENTION_EXTENDED;
  const auto committed = pool_->CommitAndWait(std::vector{entry});
  ASSERT_TRUE(committed) << committed.error().ToString();
  EXPECT_THAT(*committed, ElementsAre(KVT_OK));
  EXPECT_EQ(pool_->Info().attachment, blocks[0].attachment);
  EXPECT_TRUE(pool_->Release(blocks));
  EXPECT_EQ(References(), 0u);
}

// Other code changes the bytes of a lost block as soon as the client has claimed it in vain.
class LostBlockTest : public ResumeTest {
 protected:
  static constexpr std::byte kOther{0xEE};
  // Dies, has lost the block, and is asked for it by the client, as by any call of any thread.
  void LoseAtRestart(uint32_t block) {
    Lose(block);
    daemon_->DieAndAdopt();
    (void)pool_->Info();
    daemon_->WithCache([&](FakeCache* cache) { std::ranges::fill(cache->Bytes(block), kOther); });
  }
  // The same while a copy of the block is under way.
  kvt_sequence_options LosesWhatItCopies() {
    kvt_sequence_options options;
    kvt_sequence_options_init(&options);
    options.copy = [](void* test, uint64_t target, uint64_t source, uint64_t bytes) {
      static_cast<LostBlockTest*>(test)->LoseAndCopy(target, source, bytes);
      return int32_t{0};
    };
    options.copy_user = this;
    return options;
  }
  void LoseAndCopy(uint64_t target, uint64_t source, uint64_t bytes) {
    LoseAtRestart(static_cast<uint32_t>(source / bytes));
    auto* const base = static_cast<std::byte*>(pool_->Info().base);
    std::copy_n(base + source, bytes, base + target);
  }
  // Commits all of the tokens, the last of them in a partial block.
  void FillWithPartialBlock(uint32_t tokens) {
    auto sequence = pool_->OpenSequence(Tokens(tokens));
    ASSERT_TRUE(sequence);
    ASSERT_TRUE(sequence->MarkComputed(tokens));
    ASSERT_TRUE(sequence->Finish());
  }
};

TEST_F(LostBlockTest, ALoadThatWasCompleteCanBeLostAndTheCheckSaysSo) {
  Begin({.counters = true});
  daemon_->WithCache([](FakeCache* cache) {
    cache->PutBelow(WireHash(1), Tier::kHost, kBlockTokens, std::byte{1});
  });
  auto acquired = pool_->Acquire(Hashes(1, 1), {}, 0);
  ASSERT_TRUE(acquired);
  // Counted, and the daemon dies before it notes that the load has ended.
  daemon_->Count(LoadId{acquired->load.id}, 1);
  ASSERT_TRUE(pool_->Wait(&*acquired, 1));
  ASSERT_EQ(acquired->hits.size(), 1u);
  ASSERT_TRUE(pool_->Check(acquired->hits.blocks()));
  const uint64_t attachment = pool_->Info().attachment;
  LoseAtRestart(acquired->hits[0].index);
  EXPECT_EQ((*pool_->Bytes(acquired->hits[0]))[0], kOther) << "the next daemon has reused it";
  EXPECT_TRUE(connection_->IsConnected());
  EXPECT_EQ(pool_->Info().attachment, attachment);
  const auto checked = pool_->Check(acquired->hits.blocks());
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, KVT_STALE_HANDLE);
  EXPECT_STREQ(checked.error().reason.c_str(), "lost_at_restart");
  const auto errors = connection_->TakeErrors();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].block.index, acquired->hits[0].index);
}

TEST_F(LostBlockTest, ABlockIsCheckedByItsPoolAlsoAfterAnotherCallHasReconnected) {
  Fill({Hash(1)});
  const auto acquired = pool_->Acquire(Hashes(1, 1), {}, 0);
  ASSERT_TRUE(acquired);
  Lose(acquired->hits[0].index);
  daemon_->DieAndAdopt();
  while (!connection_->Ping()) {
  }
  EXPECT_TRUE(connection_->IsConnected());
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty()) << "the pool has not been resumed";
  EXPECT_FALSE(pool_->Check(acquired->hits.blocks()));
}

TEST_F(LostBlockTest, BlocksOfADaemonThatHasCutTheConnectionAreNotHeld) {
  Fill({Hash(1)});
  const auto acquired = pool_->Acquire(Hashes(1, 1), {}, 0);
  ASSERT_TRUE(acquired);
  EXPECT_TRUE(pool_->Check(acquired->hits.blocks()));
  daemon_->DropClient();
  while (!connection_->Ping()) {
  }
  EXPECT_TRUE(connection_->IsConnected());
  EXPECT_EQ(pool_->Check(acquired->hits.blocks()).error().code, KVT_STALE_HANDLE);
}

TEST_F(LostBlockTest, BlocksThatAreKeptStayGoodAndThoseGivenBackDoNot) {
  const std::vector<kvt_block> blocks = AcquireNew(2);
  daemon_->DieAndAdopt();
  EXPECT_TRUE(pool_->Check(blocks));
  EXPECT_TRUE(pool_->Check({}));
  ASSERT_TRUE(pool_->Release(std::vector{blocks[1]}));
  EXPECT_TRUE(pool_->Check(std::vector{blocks[0]}));
  EXPECT_EQ(pool_->Check(blocks).error().code, KVT_STALE_HANDLE);
}

TEST_F(LostBlockTest, APartialBlockThatIsLostWhileItIsCopiedIsNotCached) {
  FillWithPartialBlock(10);
  const kvt_sequence_options options = LosesWhatItCopies();
  auto sequence = pool_->OpenSequence(Tokens(11), &options);
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  EXPECT_EQ(sequence->cached_tokens(), 8u);
  EXPECT_EQ(sequence->Info().miss, KVT_MISS_UNAVAILABLE);
  EXPECT_EQ(sequence->BlockTable()->size(), 3u);
  EXPECT_TRUE(sequence->Check());
}

TEST_F(LostBlockTest, ASequenceWhosePartialBlockIsLostWhileItIsCopiedIsStale) {
  const kvt_sequence_options options = LosesWhatItCopies();
  auto sequence = pool_->OpenSequence(Tokens(10), &options);
  ASSERT_TRUE(sequence);
  ASSERT_TRUE(sequence->MarkComputed(10));
  ASSERT_TRUE(sequence->Finish());
  const auto appended = sequence->Append(Tokens(1, 2000));
  ASSERT_FALSE(appended);
  EXPECT_EQ(appended.error().code, KVT_STALE_HANDLE);
  ExpectStale(*sequence);
}

TEST_F(LostBlockTest, AForkOfBlocksThatAreLostWhileTheyAreCopiedFails) {
  const kvt_sequence_options options = LosesWhatItCopies();
  auto sequence = pool_->OpenSequence(Tokens(10), &options);
  ASSERT_TRUE(sequence);
  ASSERT_TRUE(sequence->MarkComputed(10));
  const auto fork = sequence->Fork();
  ASSERT_FALSE(fork);
  EXPECT_EQ(fork.error().code, KVT_STALE_HANDLE);
}

TEST_F(ResumeTest, ManyBlocksAreClaimedInSeveralMessages) {
  Begin({.blocks = 10'000});
  const std::vector<kvt_block> blocks = AcquireNew(wire::kMaxClaimsPerResume + 10);
  daemon_->DieAndAdopt();
  ASSERT_TRUE(pool_->Release(std::vector{blocks[0]}));
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  ASSERT_EQ(resumes_.size(), 2u);
  EXPECT_EQ(resumes_[0].claims.size(), wire::kMaxClaimsPerResume);
  EXPECT_TRUE(resumes_[0].more);
  EXPECT_EQ(resumes_[1].claims.size(), 9u);
  EXPECT_FALSE(resumes_[1].more);
}

TEST_F(ResumeTest, WhatIsGivenBackWhileTheDaemonIsGoneIsNotClaimed) {
  const std::vector<kvt_block> blocks = AcquireNew(3);
  daemon_->DieAndAdopt();
  EXPECT_TRUE(pool_->Release(std::vector{blocks[1]}));
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  EXPECT_THAT(Claimed(), ElementsAre(blocks[0].index, blocks[2].index));
}

TEST_F(ResumeTest, ABlockIsClaimedAsOftenAsItIsHeld) {
  Fill({Hash(1)});
  const auto first = pool_->Acquire(std::vector{Hash(1)}, {}, 0);
  const auto second = pool_->Acquire(std::vector{Hash(1)}, {}, 0);
  ASSERT_TRUE(first && second);
  daemon_->DieAndAdopt();
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  ASSERT_EQ(resumes_.size(), 1u);
  ASSERT_EQ(resumes_[0].claims.size(), 1u);
  EXPECT_EQ(resumes_[0].claims[0].references, 2u);
}

TEST_F(ResumeTest, OfALostBlockTheDaemonIsToldNothing) {
  const std::vector<kvt_block> blocks = AcquireNew(3);
  Lose(blocks[1].index);
  daemon_->DieAndAdopt();
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  ASSERT_EQ(connection_->TakeErrors().size(), 1u);
  std::vector<kvt_status> results(3, KVT_OK);
  ASSERT_EQ(kvt_release(pool_->get(), blocks.data(), 3, results.data()), KVT_OK);
  EXPECT_THAT(results, ElementsAre(KVT_OK, KVT_STALE_HANDLE, KVT_OK));
  EXPECT_TRUE(pool_->Release(std::vector{blocks[1]}));
  EXPECT_EQ(References(), 0u);
  EXPECT_THAT(connection_->TakeErrors(), IsEmpty());
}

TEST_F(ResumeTest, WhereNothingIsHeldTheNextDaemonIsToldSo) {
  daemon_->DieAndAdopt();
  ASSERT_TRUE(pool_->Acquire({}, {}, 1));
  ASSERT_EQ(resumes_.size(), 1u);
  EXPECT_THAT(resumes_[0].claims, IsEmpty());
  EXPECT_FALSE(resumes_[0].more);
}

TEST_F(ResumeTest, WhereNothingIsHeldNoCallWaits) {
  daemon_.reset();
  const auto acquired = pool_->Acquire({}, {}, 1);
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().code, KVT_UNAVAILABLE);
  EXPECT_EQ(pool_->Acquire({}, {}, 1).error().code, KVT_UNAVAILABLE);
}

TEST_F(ResumeTest, OpeningASequenceWaitsForTheNextDaemonThoughNothingIsHeld) {
  daemon_.reset();
  std::latch opening(1);
  std::optional<bool> opened;
  std::thread client([&] {
    opening.count_down();
    opened = static_cast<bool>(pool_->OpenSequence(Tokens(6)));
  });
  opening.wait();
  StartDaemon({.keeps = true});
  client.join();
  EXPECT_EQ(opened, true);
}

TEST_F(ResumeTest, AllThatOpenSequencesWaitForAnAbsentDaemonOnce) {
  constexpr int kOpenings = 40;
  kvt_connect_options options = Options();
  options.resume_wait_ms = 500;
  Attach(options);
  daemon_.reset();
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kOpenings; ++i) {
    EXPECT_EQ(pool_->OpenSequence(Tokens(6)).error().code, KVT_UNAVAILABLE);
  }
  // Each on its own would have waited that long.
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kOpenings * std::chrono::milliseconds(500));
}

TEST_F(ResumeTest, ADaemonThatHasCutTheConnectionIsNotAsked) {
  auto sequence = pool_->OpenSequence(Tokens(6));
  ASSERT_TRUE(sequence);
  daemon_->DropClient();
  ExpectStale(*sequence);
  EXPECT_THAT(resumes_, IsEmpty());
}

TEST_F(ResumeTest, InOtherMemoryNothingIsClaimed) {
  auto sequence = pool_->OpenSequence(Tokens(6));
  ASSERT_TRUE(sequence);
  StartDaemon({.generation = 9, .keeps = true});
  ExpectStale(*sequence);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kResume), 0);
  EXPECT_TRUE(pool_->Acquire({}, {}, 1)) << "the pool serves what comes next";
  // Two were made; the one in which nothing could be claimed was taken back.
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAttach), 2);
  daemon_->WaitForRequests(wire::MessageType::kDetach, 1);
}

TEST_F(ResumeTest, AGpuThatTheNextDaemonListsElsewhereIsAttachedThere) {
  const auto device = [](wire::DeviceKind kind, uint8_t byte) {
    wire::DevicesReply::Device listed{.kind = kind, .name = "device"};
    listed.uuid.fill(byte);
    return listed;
  };
  const wire::DevicesReply::Device gpu = device(wire::DeviceKind::kCuda, 7);
  const wire::DevicesReply::Device other = device(wire::DeviceKind::kCuda, 8);
  const auto listed = std::make_shared<std::vector<wire::DevicesReply::Device>>();
  const auto attached = std::make_shared<std::vector<uint32_t>>();
  daemon_->Intercept([=](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kDevices)) {
      return FrameOf(wire::DevicesReply{*listed}, frame.request_id);
    }
    if (frame.type == static_cast<uint16_t>(wire::MessageType::kAttach)) {
      attached->push_back(wire::Decode<wire::Attach>(frame.payload)->device);
    }
    return std::nullopt;
  });
  const auto model = connection_->RegisterModel(Record());
  ASSERT_TRUE(model);
  pool_.reset();
  for (const uint32_t position : {KVT_ANY_DEVICE, 0u}) {
    daemon_->WithCache([&](FakeCache*) { *listed = {gpu}; });
    auto pool = connection_->Attach(model->model, 0, position);
    ASSERT_TRUE(pool) << pool.error().ToString();
    const std::vector<kvt_block> blocks = AcquireNewIn(*pool, 1);
    daemon_->WithCache([&](FakeCache*) { *listed = {other, gpu}; });
    daemon_->DieAndAdopt();
    EXPECT_TRUE(pool->Check(blocks));
    EXPECT_THAT(*attached, ElementsAre(0, 1)) << position;
    attached->clear();
  }
}

TEST_F(ResumeTest, APoolThatWasClosedIsNotResumed) {
  (void)AcquireNew(2);
  pool_.reset();
  daemon_->DieAndAdopt();
  EXPECT_TRUE(connection_->Ping());
  EXPECT_THAT(resumes_, IsEmpty());
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kAttach), 1);
}

TEST_F(ResumeTest, AnAnswerThatDoesNotFitTheClaimsIsRefused) {
  kvt_connect_options options = Options();
  options.resume_wait_ms = 50;
  Attach(options);
  auto sequence = pool_->OpenSequence(Tokens(6));
  ASSERT_TRUE(sequence);
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kResume)) return std::nullopt;
    FakeDaemon::Bytes bytes;
    wire::Encode(wire::ResumeReply{{ResumeOutcome::kPrivate}}, frame.request_id, &bytes);
    return bytes;
  });
  daemon_->DieAndAdopt();
  ExpectStale(*sequence);
}

TEST_F(ResumeTest, ADaemonThatDiesAgainMeanwhileIsFollowedByTheNext) {
  auto sequence = pool_->OpenSequence(Tokens(6));
  ASSERT_TRUE(sequence);
  const auto asked = std::make_shared<std::atomic<int>>(0);
  FakeDaemon* const daemon = daemon_.get();
  daemon_->Intercept([asked, daemon](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    const bool resume = frame.type == static_cast<uint16_t>(wire::MessageType::kResume);
    if (!resume || ++*asked > 1) return std::nullopt;
    // Says nothing any more.
    daemon->DieAndAdoptLocked();
    return FakeDaemon::Bytes{};
  });
  daemon_->DieAndAdopt();
  EXPECT_TRUE(sequence->Check());
  EXPECT_GE(*asked, 2);
}

TEST_F(ResumeTest, WithoutPatienceNothingIsWaitedFor) {
  kvt_connect_options options = Options();
  options.resume_wait_ms = 0;
  Attach(options);
  auto sequence = pool_->OpenSequence(Tokens(6));
  ASSERT_TRUE(sequence);
  daemon_->DieAndAdopt();
  ExpectStale(*sequence);
  EXPECT_THAT(resumes_, IsEmpty());
}

}  // namespace
}  // namespace kvtier::client
