// SPDX-License-Identifier: Apache-2.0
// Which requests an I/O engine begins first, and how many are under way.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/units.h"
#include "tiers/storage/io_engine.h"

namespace kvtier {
namespace {

IoRequest Request(uint64_t bytes, uint64_t offset = 0) {
  return {.kind = IoKind::kRead, .offset = offset, .bytes = bytes, .done = [](Status) {}};
}

IoRequest Write(uint64_t offset) {
  IoRequest request = Request(4096, offset);
  request.kind = IoKind::kWrite;
  return request;
}

TEST(IoQueueTest, NeverHasMoreInFlightThanItsPlacesAndUsesAllOfThem) {
  constexpr size_t kPlaces = 100;
  IoQueue queue(kPlaces);
  std::mt19937 random(1);
  std::vector<IoRequest> taken;
  for (int step = 0; step < 10'000; ++step) {
    for (int i = 0; i < 2; ++i) queue.Push(random() % 2 == 0 ? Request(4096) : Write(0));
    while (queue.CanTake()) taken.push_back(queue.Take());
    ASSERT_LE(taken.size(), kPlaces);
    ASSERT_TRUE(step < 100 || taken.size() == kPlaces);
    const size_t victim = random() % taken.size();
    queue.Finish(taken[victim]);
    taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(victim));
  }
}

TEST(IoQueueTest, ServesReadsAndWritesEachInOrderOfArrival) {
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
    IoQueue queue(1);
    for (uint64_t i = 0; i < 5; ++i) {
      queue.Push(kind == IoKind::kRead ? Request(4096 * (5 - i), i) : Write(i));
    }
    for (uint64_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(queue.CanTake());
      const IoRequest request = queue.Take();
      EXPECT_EQ(request.offset, i);
      EXPECT_FALSE(queue.CanTake());
      queue.Finish(request);
    }
  }
}

TEST(IoQueueTest, ReadsDoNotWaitBehindTheWritesThatCameBefore) {
  IoQueue queue(8);
  for (uint64_t i = 0; i < 100; ++i) queue.Push(Write(i));
  for (uint64_t i = 0; i < 100; ++i) queue.Push(Request(4096, i));
  int writes = 0;
  for (uint64_t next_read = 0; queue.CanTake();) {
    const IoRequest request = queue.Take();
    if (request.kind == IoKind::kRead) {
      EXPECT_EQ(request.offset, next_read++);
    } else {
      ++writes;
    }
  }
  EXPECT_EQ(writes, 1);
}

TEST(IoQueueTest, WritesKeepAPlaceWhileReadsComeWithoutEnd) {
  IoQueue queue(8);
  for (uint64_t i = 0; i < 10; ++i) queue.Push(Write(i));
  int writes_done = 0;
  for (uint64_t turn = 0; turn < 20; ++turn) {
    for (uint64_t i = 0; i < 16; ++i) queue.Push(Request(4096, i));
    const IoRequest request = queue.Take();
    if (request.kind == IoKind::kWrite) ++writes_done;
    queue.Finish(request);
  }
  EXPECT_EQ(writes_done, 10);
}

TEST(IoQueueTest, HalfOfManyBytesOfReadsWaitAndFewBytesDoNot) {
  IoQueue queue(1000);
  for (uint64_t i = 0; i < 64; ++i) queue.Push(Request(kMiB, i));
  std::vector<IoRequest> taken;
  while (queue.CanTake()) taken.push_back(queue.Take());
  EXPECT_EQ(taken.size(), 32u);
  // The drive's burst: there is work for it at once.
  for (const IoRequest& request : taken) queue.Finish(request);
  size_t again = 0;
  for (; queue.CanTake(); ++again) (void)queue.Take();
  EXPECT_EQ(again, 16u);
}

TEST(IoQueueTest, WritesHaveEveryPlaceWhenNothingIsRead) {
  IoQueue queue(8);
  for (uint64_t i = 0; i < 20; ++i) queue.Push(Write(i));
  int taken = 0;
  for (; queue.CanTake(); ++taken) (void)queue.Take();
  EXPECT_EQ(taken, 8);
}

TEST(IoQueueTest, CancelsEachWaitingRequestOnce) {
  IoQueue queue(1);
  for (int i = 0; i < 3; ++i) queue.Push(Request(4096));
  const std::vector<IoCompletion> cancelled = queue.CancelWaiting();
  ASSERT_EQ(cancelled.size(), 3u);
  for (const IoCompletion& completion : cancelled) {
    EXPECT_EQ(completion.status.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(completion.status.error().reason, "closed");
  }
  EXPECT_FALSE(queue.CanTake());
}

TEST(IoRequestTest, GoesOnOnceAfterAShortTransfer) {
  IoRequest request = Request(16 * 4096);
  Status status;
  EXPECT_FALSE(request.Advance(4096, 16 * 4096, &status));
  EXPECT_TRUE(request.Advance(15 * 4096, 15 * 4096, &status));
  EXPECT_TRUE(status);
}

TEST(IoRequestTest, ASecondShortTransferIsAnError) {
  IoRequest request = Request(16 * 4096);
  Status status;
  EXPECT_FALSE(request.Advance(4096, 16 * 4096, &status));
  EXPECT_TRUE(request.Advance(4096, 15 * 4096, &status));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIoError);
  EXPECT_EQ(status.error().reason, "short_io");
}

TEST(IoRequestTest, AnUnalignedShortTransferIsAnErrorAtOnce) {
  IoRequest request = Request(16 * 4096);
  Status status;
  EXPECT_TRUE(request.Advance(512, 16 * 4096, &status));
  EXPECT_EQ(status.error().reason, "short_io");
}

TEST(IoRequestTest, NamesTheErrno) {
  IoRequest request = Request(4096, 8192);
  Status status;
  EXPECT_TRUE(request.Advance(-ENOSPC, 4096, &status));
  EXPECT_EQ(status.error().code, ErrorCode::kIoError);
  EXPECT_EQ(status.error().reason, "ENOSPC");
  EXPECT_NE(status.error().context.find("4096 bytes at 8192"), std::string::npos);
}

TEST(IoRequestTest, ARequestOfSeveralFullTransfersIsNotShort) {
  IoRequest request = Request(3 * kMaxTransferBytes);
  Status status;
  EXPECT_FALSE(request.Advance(kMaxTransferBytes, kMaxTransferBytes, &status));
  EXPECT_FALSE(request.Advance(kMaxTransferBytes, kMaxTransferBytes, &status));
  EXPECT_FALSE(request.continued);
  EXPECT_TRUE(request.Advance(kMaxTransferBytes, kMaxTransferBytes, &status));
  EXPECT_TRUE(status);
}

}  // namespace
}  // namespace kvtier
