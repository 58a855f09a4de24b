// SPDX-License-Identifier: Apache-2.0
#include "client/core/transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Failed = wire::TransferDone::Failed;

wire::TransferDone Done(uint64_t transfer, uint32_t copied, uint32_t skipped = 0,
                        std::vector<Failed> failed = {}) {
  return {PoolId{1}, transfer, copied, skipped, std::move(failed)};
}

std::vector<uint64_t> NumbersOf(const std::vector<EndedTransfer>& ended) {
  std::vector<uint64_t> numbers;
  for (const EndedTransfer& end : ended) numbers.push_back(end.transfer);
  return numbers;
}

// A page with four counters that a client may name.
std::shared_ptr<LoadCounters> Counters() {
  UniqueFd page(::memfd_create("counters", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(page.get(), 8 * 64), 0);
  return LoadCounters::Map(std::move(page)).value();
}

// A transfer that is one message.
void Begin(Transfers* transfers, uint64_t transfer, uint32_t blocks) {
  transfers->AddPart(transfer, blocks, transfer, 0, blocks);
}

TEST(Transfers, AreToldOnceInTheOrderInWhichTheyEnd) {
  Transfers transfers(Counters());
  for (const uint64_t transfer : {1, 2, 3}) Begin(&transfers, transfer, 4);
  EXPECT_THAT(transfers.TakeEnded(9), IsEmpty());
  ASSERT_TRUE(transfers.OnDone(Done(3, 4)));
  ASSERT_TRUE(transfers.OnDone(Done(1, 1, 3)));
  EXPECT_TRUE(transfers.IsUnderWay(2));
  EXPECT_FALSE(transfers.IsUnderWay(3));
  EXPECT_THAT(NumbersOf(transfers.TakeEnded(1)), ElementsAre(3));
  const std::vector<EndedTransfer> rest = transfers.TakeEnded(9);
  ASSERT_THAT(NumbersOf(rest), ElementsAre(1));
  EXPECT_EQ(rest[0].copied, 1u);
  EXPECT_EQ(rest[0].skipped, 3u);
  EXPECT_FALSE(rest[0].error);
}

TEST(Transfers, OneCanBeTakenBeforeThoseThatEndedEarlier) {
  Transfers transfers(Counters());
  for (const uint64_t transfer : {1, 2}) Begin(&transfers, transfer, 1);
  ASSERT_TRUE(transfers.OnDone(Done(1, 1)));
  EXPECT_FALSE(transfers.TakeOne(2));
  ASSERT_TRUE(transfers.OnDone(Done(2, 1)));
  EXPECT_TRUE(transfers.TakeOne(2));
  EXPECT_FALSE(transfers.TakeOne(2));
  EXPECT_THAT(NumbersOf(transfers.TakeEnded(9)), ElementsAre(1));
}

TEST(Transfers, PartsOfOneTransferEndInAnyOrder) {
  Transfers transfers(Counters());
  transfers.AddPart(7, 10, 7, 0, 4);
  // The first part may end before the second one is sent.
  ASSERT_TRUE(
      transfers.OnDone(Done(7, 2, 0, {{0, MissReason::kUnknown}, {3, MissReason::kExpired}})));
  EXPECT_TRUE(transfers.IsUnderWay(7));
  transfers.AddPart(7, 10, 8, 4, 4);
  transfers.AddPart(7, 10, 9, 8, 2);
  ASSERT_TRUE(transfers.OnDone(Done(9, 1, 0, {{1, MissReason::kReadError}})));
  EXPECT_THAT(transfers.TakeEnded(9), IsEmpty());
  ASSERT_TRUE(transfers.OnDone(Done(8, 1, 2, {{2, MissReason::kCopyFailed}})));
  const auto end = transfers.TakeOne(7);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->copied, 4u);
  EXPECT_EQ(end->skipped, 2u);
  EXPECT_THAT(end->failed,
              ElementsAre(Failed{0, MissReason::kUnknown}, Failed{3, MissReason::kExpired},
                          Failed{6, MissReason::kCopyFailed}, Failed{9, MissReason::kReadError}));
}

TEST(Transfers, ARefusedPartFailsWithItsBlocks) {
  Transfers transfers(Counters());
  transfers.AddPart(7, 3, 7, 0, 2);
  transfers.AddPart(7, 3, 8, 2, 1);
  EXPECT_FALSE(transfers.OnRefused(6, {ErrorCode::kWrongState, "block_busy", ""}));
  EXPECT_TRUE(transfers.OnRefused(8, {ErrorCode::kWrongState, "block_busy", ""}));
  ASSERT_TRUE(transfers.OnDone(Done(7, 2)));
  const auto end = transfers.TakeOne(7);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->copied, 2u);
  EXPECT_THAT(end->failed, ElementsAre(Failed{2, MissReason::kCancelled}));
  ASSERT_TRUE(end->error);
  EXPECT_EQ(end->error->reason, "block_busy");
}

TEST(Transfers, EndWithTheConnection) {
  Transfers transfers(Counters());
  Begin(&transfers, 1, 1);
  Begin(&transfers, 2, 2);
  ASSERT_TRUE(transfers.OnDone(Done(1, 1)));
  transfers.FailAll({ErrorCode::kUnavailable, "connection_lost", ""});
  const std::vector<EndedTransfer> ended = transfers.TakeEnded(9);
  ASSERT_THAT(NumbersOf(ended), ElementsAre(1, 2));
  EXPECT_FALSE(ended[0].error);
  ASSERT_TRUE(ended[1].error);
  EXPECT_EQ(ended[1].error->code, ErrorCode::kUnavailable);
  EXPECT_THAT(ended[1].failed,
              ElementsAre(Failed{0, kMissUnavailable}, Failed{1, kMissUnavailable}));
}

TEST(Transfers, BlocksThatWereNotSentFailWithTheRestOfTheirTransfer) {
  const Error lost{ErrorCode::kUnavailable, "connection_lost", ""};
  for (const uint64_t unsent : {8, 0}) {
    Transfers transfers(Counters());
    transfers.AddPart(7, 3, 7, 0, 1);
    ASSERT_TRUE(transfers.layers().AddPart(7, 7, 4));
    ASSERT_TRUE(transfers.OnDone(Done(7, 1)));
    if (unsent != 0) transfers.AddPart(7, 3, unsent, 1, 1);
    transfers.FailUnsent(7, unsent, lost);
    const auto end = transfers.TakeOne(7);
    ASSERT_TRUE(end) << unsent;
    EXPECT_EQ(end->copied, 1u);
    EXPECT_THAT(end->failed, ElementsAre(Failed{1, kMissUnavailable}, Failed{2, kMissUnavailable}));
    EXPECT_EQ(end->error->reason, "connection_lost");
    EXPECT_EQ(transfers.layers().Find(7)->layers, 0u);
    EXPECT_TRUE(transfers.layers().Find(7)->failure);
  }
}

TEST(Transfers, APartUnderWayIsTheLastOfATransferThatCouldNotAllBeSent) {
  Transfers transfers(Counters());
  transfers.AddPart(7, 2, 7, 0, 1);
  transfers.FailUnsent(7, 0, {ErrorCode::kLimitExceeded, "frame_too_long", ""});
  EXPECT_FALSE(transfers.TakeOne(7));
  ASSERT_TRUE(transfers.OnDone(Done(7, 1)));
  const auto end = transfers.TakeOne(7);
  ASSERT_TRUE(end);
  EXPECT_THAT(end->failed, ElementsAre(Failed{1, kMissUnavailable}));
}

TEST(Transfers, WhatWasNotBegunIsNotTold) {
  Transfers transfers(Counters());
  transfers.AddPart(7, 10, 7, 0, 4);
  transfers.FailAll({ErrorCode::kUnavailable, "connection_lost", ""});
  transfers.Forget(7);
  EXPECT_FALSE(transfers.IsUnderWay(7));
  EXPECT_THAT(transfers.TakeEnded(9), IsEmpty());
}

TEST(Transfers, AnEndThatDoesNotFitTheTransferIsRefused) {
  Transfers transfers(Counters());
  Begin(&transfers, 1, 3);
  EXPECT_EQ(transfers.OnDone(Done(2, 3)).error().reason, "transfer_unknown");
  const std::vector<wire::TransferDone> unfit = {
      Done(1, 2),
      Done(1, 4),
      Done(1, UINT32_MAX, 4),  // 3, if it wrapped around
      Done(1, 2, 0, {{3, MissReason::kUnknown}}),
      Done(1, 2, 0, {{0, MissReason::kNone}}),
  };
  for (const wire::TransferDone& done : unfit) {
    EXPECT_EQ(transfers.OnDone(done).error().reason, "transfer_done_invalid");
  }
  ASSERT_TRUE(transfers.OnDone(Done(1, 3)));
  EXPECT_EQ(transfers.OnDone(Done(1, 3)).error().reason, "transfer_unknown");
}

TEST(Transfers, KeepTheFailuresOfTheLatest) {
  Transfers transfers(Counters());
  for (uint64_t i = 1; i <= Transfers::kFailuresKept + 1; ++i) {
    Begin(&transfers, i, 1);
    ASSERT_TRUE(transfers.OnDone(Done(i, 0, 0, {{0, MissReason::kUnknown}})));
  }
  EXPECT_THAT(transfers.FailuresOf(2), IsEmpty());  // not told yet
  (void)transfers.TakeEnded(SIZE_MAX);
  EXPECT_THAT(transfers.FailuresOf(1), IsEmpty());
  EXPECT_THAT(transfers.FailuresOf(2), ElementsAre(Failed{0, MissReason::kUnknown}));
  transfers.ForgetFailures(2);
  EXPECT_THAT(transfers.FailuresOf(2), IsEmpty());
  EXPECT_THAT(transfers.FailuresOf(3), ElementsAre(Failed{0, MissReason::kUnknown}));
}

// --- layers ---

TEST(Transfers, ALoadOfSeveralPartsHasTheLayersThatAllOfThemHave) {
  const auto counters = Counters();
  Transfers transfers(counters);
  std::vector<wire::LoadCounter> parts;
  for (const uint64_t part : {7, 8}) {
    transfers.AddPart(7, 10, part, static_cast<uint32_t>(5 * (part - 7)), 5);
    parts.push_back(*transfers.layers().AddPart(7, part, 4));
  }
  counters->Set(parts[0], 3);
  EXPECT_EQ(transfers.layers().Find(7)->layers, 0u);
  counters->Set(parts[1], 2);
  EXPECT_EQ(transfers.layers().Find(7)->layers, 2u);
  ASSERT_TRUE(transfers.OnDone(Done(8, 5)));
  EXPECT_EQ(transfers.layers().Find(7)->layers, 3u) << "the other part has all";
  ASSERT_TRUE(transfers.OnDone(Done(7, 5)));
  EXPECT_EQ(transfers.layers().Find(7)->layers, 4u);
  EXPECT_TRUE(transfers.layers().Find(7)->ended);
}

TEST(Transfers, ALoadOfWhichAPartFailsGetsNoFurtherLayers) {
  const auto counters = Counters();
  Transfers transfers(counters);
  std::vector<wire::LoadCounter> parts;
  for (const uint64_t part : {7, 8}) {
    transfers.AddPart(7, 2, part, static_cast<uint32_t>(part - 7), 1);
    parts.push_back(*transfers.layers().AddPart(7, part, 4));
    counters->Set(parts.back(), 1);
  }
  ASSERT_TRUE(transfers.OnDone(Done(7, 0, 0, {{0, MissReason::kReadError}})));
  counters->Set(parts[1], 4);
  EXPECT_EQ(transfers.layers().Find(7)->layers, 1u);
  EXPECT_EQ(transfers.layers().Find(7)->failure->reason, "load_incomplete");
  ASSERT_TRUE(transfers.OnDone(Done(8, 1)));
  EXPECT_EQ(transfers.layers().Find(7)->layers, 1u);
}

TEST(Transfers, CountersComeBackWithTheEnd) {
  const auto counters = Counters();
  Transfers transfers(counters);
  for (uint64_t transfer = 1; transfer <= 20; ++transfer) {
    Begin(&transfers, transfer, 1);
    ASSERT_TRUE(transfers.layers().AddPart(transfer, transfer, 4));
    if (transfer % 3 == 0) {
      transfers.Forget(transfer);
    } else {
      ASSERT_TRUE(transfers.OnDone(Done(transfer, 1)));
    }
  }
}

}  // namespace
}  // namespace kvtier::client
