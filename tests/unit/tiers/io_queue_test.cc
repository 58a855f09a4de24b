// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "tiers/storage/io_engine.h"

namespace kvtier {
namespace {

IoRequest Request(uint64_t bytes, uint64_t offset = 0) {
  return {.kind = IoKind::kRead, .offset = offset, .bytes = bytes, .done = [](Status) {}};
}

TEST(IoQueueTest, NeverHasMoreBytesUnderWayThanItsDepth) {
  IoQueue queue(1000);
  std::mt19937 random(1);
  std::vector<uint64_t> taken;
  for (int step = 0; step < 10'000; ++step) {
    for (int i = 0; i < 2; ++i) queue.Push(Request(1 + random() % 400));
    while (queue.CanTake()) taken.push_back(queue.Take().bytes);
    ASSERT_LE(queue.bytes_under_way(), 1000u);
    // The depth is used: with a backlog, only what the next request would exceed stays free.
    ASSERT_TRUE(step < 20 || queue.bytes_under_way() > 600u);
    const size_t victim = random() % taken.size();
    queue.Finish(taken[victim]);
    taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(victim));
  }
}

TEST(IoQueueTest, ARequestLargerThanTheDepthRunsAlone) {
  IoQueue queue(1000);
  queue.Push(Request(1));
  queue.Push(Request(5000));
  queue.Push(Request(1));
  EXPECT_EQ(queue.Take().bytes, 1u);
  EXPECT_FALSE(queue.CanTake());
  queue.Finish(1);
  EXPECT_EQ(queue.Take().bytes, 5000u);
  EXPECT_FALSE(queue.CanTake());
  queue.Finish(5000);
  EXPECT_TRUE(queue.CanTake());
}

TEST(IoQueueTest, ServesInOrderOfArrival) {
  IoQueue queue(10);
  for (uint64_t i = 0; i < 5; ++i) queue.Push(Request(10 - i, i));
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(queue.CanTake());
    const IoRequest request = queue.Take();
    EXPECT_EQ(request.offset, i);
    queue.Finish(request.bytes);
  }
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
