// SPDX-License-Identifier: Apache-2.0
#include "gpu/copy_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvtier {
namespace {

constexpr uint64_t kChunkBytes = 1000;
constexpr int64_t kSecondNs = 1'000'000'000;

// Requests of copies of the given sizes, back to back from address 0 of a pretended host memory.
CopyRequest Request(CopyDirection direction, CopyPriority priority,
                    const std::vector<uint64_t>& sizes) {
  CopyRequest request{.direction = direction, .priority = priority};
  uint64_t offset = 0;
  for (const uint64_t bytes : sizes) {
    request.copies.push_back({offset, reinterpret_cast<std::byte*>(offset), bytes});
    offset += bytes;
  }
  return request;
}

CopyRequest Up(CopyPriority priority, const std::vector<uint64_t>& sizes) {
  return Request(CopyDirection::kHostToPool, priority, sizes);
}

std::vector<uint64_t> PieceSizes(const CopyChunk& chunk) {
  std::vector<uint64_t> sizes;
  for (const CopyPiece& piece : chunk.pieces) sizes.push_back(piece.bytes);
  return sizes;
}

std::optional<CopyChunk> TakeUp(CopyQueue* queue) {
  return queue->Take(CopyDirection::kHostToPool, 0);
}

TEST(CopyQueueTest, AChunkHoldsWholeBlocksOfSeveralRequests) {
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  queue.Add(Up(CopyPriority::kDemand, {300, 300}), nullptr);
  queue.Add(Up(CopyPriority::kDemand, {300, 300}), nullptr);
  const auto first = TakeUp(&queue);
  ASSERT_TRUE(first);
  EXPECT_EQ(PieceSizes(*first), (std::vector<uint64_t>{300, 300, 300}));
  ASSERT_EQ(first->jobs.size(), 2u);
  EXPECT_TRUE(first->jobs[0]->AllTaken());
  EXPECT_FALSE(first->jobs[1]->AllTaken());
  const auto second = TakeUp(&queue);
  ASSERT_TRUE(second);
  EXPECT_EQ(PieceSizes(*second), (std::vector<uint64_t>{300}));
  EXPECT_EQ(second->jobs.front(), first->jobs[1]);
  EXPECT_EQ(second->jobs.front()->chunks_under_way, 2);
  EXPECT_FALSE(TakeUp(&queue));
}

TEST(CopyQueueTest, ABlockLargerThanAChunkIsCutAndCoveredOnce) {
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  queue.Add(Up(CopyPriority::kDemand, {2500}), nullptr);
  uint64_t covered = 0;
  while (const auto chunk = TakeUp(&queue)) {
    ASSERT_EQ(chunk->pieces.size(), 1u);
    EXPECT_EQ(reinterpret_cast<uint64_t>(chunk->pieces[0].host), covered);
    EXPECT_EQ(reinterpret_cast<uint64_t>(chunk->pieces[0].pool), covered);
    covered += chunk->bytes;
  }
  EXPECT_EQ(covered, 2500u);
}

TEST(CopyQueueTest, WhatIsLeftOfARequestWhoseMemoryIsNotLentAnyMoreIsTakenWithoutCopies) {
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  bool is_lent = true;
  CopyRequest request = Up(CopyPriority::kDemand, {2500, 300});
  request.is_lent = [&] { return is_lent; };
  queue.Add(std::move(request), nullptr);
  queue.Add(Up(CopyPriority::kDemand, {300}), nullptr);
  const auto first = TakeUp(&queue);
  ASSERT_EQ(PieceSizes(*first), (std::vector<uint64_t>{kChunkBytes}));
  is_lent = false;
  const auto rest = TakeUp(&queue);
  EXPECT_EQ(PieceSizes(*rest), (std::vector<uint64_t>{300}));
  ASSERT_EQ(rest->jobs.size(), 2u);
  EXPECT_TRUE(rest->jobs[0]->AllTaken());
  EXPECT_EQ(rest->jobs[0]->outcome.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(rest->jobs[1]->outcome);
  EXPECT_EQ(rest->pieces[0].job, 1u);
  EXPECT_FALSE(TakeUp(&queue));
}

TEST(CopyQueueTest, UrgentRequestsOvertakeWhatIsHalfDone) {
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  queue.Add(Up(CopyPriority::kBackground, {1000, 1000}), nullptr);
  ASSERT_EQ(TakeUp(&queue)->priority, CopyPriority::kBackground);
  queue.Add(Up(CopyPriority::kPrefetch, {10}), nullptr);
  queue.Add(Up(CopyPriority::kDemand, {10}), nullptr);
  EXPECT_EQ(TakeUp(&queue)->priority, CopyPriority::kDemand);
  EXPECT_EQ(TakeUp(&queue)->priority, CopyPriority::kPrefetch);
  EXPECT_EQ(TakeUp(&queue)->priority, CopyPriority::kBackground);
}

TEST(CopyQueueTest, OneChunkNeverMixesPrioritiesOrDirections) {
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  queue.Add(Up(CopyPriority::kDemand, {10}), nullptr);
  queue.Add(Up(CopyPriority::kPrefetch, {20}), nullptr);
  queue.Add(Request(CopyDirection::kPoolToHost, CopyPriority::kDemand, {30}), nullptr);
  EXPECT_EQ(TakeUp(&queue)->bytes, 10u);
  EXPECT_EQ(TakeUp(&queue)->bytes, 20u);
  EXPECT_EQ(queue.Take(CopyDirection::kPoolToHost, 0)->bytes, 30u);
}

TEST(CopyQueueTest, TinyBlocksDoNotMakeAChunkOfAnyLength) {
  CopyQueue queue({.chunk_bytes = 64 * kMiB});
  queue.Add(Up(CopyPriority::kDemand, std::vector<uint64_t>(kMaxChunkPieces + 10, 1)), nullptr);
  EXPECT_EQ(TakeUp(&queue)->pieces.size(), kMaxChunkPieces);
  EXPECT_EQ(TakeUp(&queue)->pieces.size(), 10u);
}

TEST(CopyQueueTest, EmptyCopiesAreLeftOut) {
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  queue.Add(Up(CopyPriority::kDemand, {0, 7, 0}), nullptr);
  const auto chunk = TakeUp(&queue);
  EXPECT_EQ(PieceSizes(*chunk), (std::vector<uint64_t>{7}));
  EXPECT_TRUE(chunk->jobs.front()->AllTaken());
}

TEST(CopyQueueTest, AFullChunkIsNotTakenBeforeThereIsOne) {
  const auto take_full = [](CopyQueue* queue) {
    return queue->Take(CopyDirection::kHostToPool, 0, ChunkFill::kFull);
  };
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  queue.Add(Up(CopyPriority::kDemand, {300, 300}), nullptr);
  EXPECT_FALSE(take_full(&queue));
  queue.Add(Up(CopyPriority::kDemand, {400, 300}), nullptr);
  EXPECT_EQ(take_full(&queue)->bytes, kChunkBytes);
  EXPECT_FALSE(take_full(&queue));
  // Less urgent work does not fill up more urgent chunks.
  queue.Add(Up(CopyPriority::kBackground, {kChunkBytes}), nullptr);
  EXPECT_FALSE(take_full(&queue));
  EXPECT_EQ(TakeUp(&queue)->bytes, 300u);
  EXPECT_EQ(take_full(&queue)->priority, CopyPriority::kBackground);
}

TEST(CopyQueueTest, BackgroundWorkGoesInSmallChunksOfWhichOneIsInFlight) {
  CopyQueue queue({.chunk_bytes = kChunkBytes, .gentle_chunk_bytes = 200});
  queue.Add(Up(CopyPriority::kBackground, {100, 100, 100}), nullptr);
  const auto take = [&](size_t in_flight) {
    return queue.Take(CopyDirection::kHostToPool, 0, ChunkFill::kAny, in_flight);
  };
  EXPECT_FALSE(take(1));
  EXPECT_EQ(take(0)->bytes, 200u);
  EXPECT_FALSE(take(1));
  EXPECT_EQ(take(0)->bytes, 100u);
}

TEST(CopyQueueTest, BackgroundWorkThatIsAwaitedFillsTheHardware) {
  CopyQueue queue({.chunk_bytes = kChunkBytes, .gentle_chunk_bytes = 200});
  queue.Add(Up(CopyPriority::kBackground, {100, 100, 100}), nullptr);
  queue.AwaitBackground(true);
  const auto chunk = queue.Take(CopyDirection::kHostToPool, 0, ChunkFill::kAny, 2);
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->bytes, 300u);
}

TEST(CopyQueueTest, UrgentWorkGoesBesideBackgroundWorkInFlight) {
  CopyQueue queue({.chunk_bytes = kChunkBytes, .gentle_chunk_bytes = 200});
  queue.Add(Up(CopyPriority::kBackground, {100, 100, 100}), nullptr);
  ASSERT_TRUE(TakeUp(&queue));
  queue.Add(Up(CopyPriority::kDemand, {300}), nullptr);
  EXPECT_EQ(queue.Take(CopyDirection::kHostToPool, 0, ChunkFill::kAny, 1)->bytes, 300u);
}

TEST(CopyQueueTest, BackgroundWorkKeepsToItsRate) {
  CopyQueue queue({.chunk_bytes = kChunkBytes, .background_bytes_per_s = 1000});
  queue.Add(Up(CopyPriority::kBackground, {500, 500, 500, 500}), nullptr);
  ASSERT_TRUE(queue.Take(CopyDirection::kHostToPool, 0));
  EXPECT_FALSE(queue.Take(CopyDirection::kHostToPool, kSecondNs - 1));
  EXPECT_EQ(queue.next_start_ns(), kSecondNs);
  EXPECT_TRUE(queue.Take(CopyDirection::kHostToPool, kSecondNs));
  EXPECT_EQ(queue.next_start_ns(), INT64_MAX);
}

TEST(CopyQueueTest, WorkWithARateIsSpreadInSmallChunks) {
  CopyQueue queue({.chunk_bytes = 64 * kMiB,
                   .gentle_chunk_bytes = 0,
                   .background_bytes_per_s = 20'000'000'000});
  const std::vector<uint64_t> blocks(64, 1 * kMiB);
  queue.Add(Up(CopyPriority::kBackground, blocks), nullptr);
  EXPECT_EQ(TakeUp(&queue)->bytes, 3 * kMiB) << "a 5000th of a second's bytes, in whole blocks";
}

TEST(CopyQueueTest, TheRateHoldsBackNobodyWhoWaits) {
  CopyQueue queue({.chunk_bytes = kChunkBytes, .background_bytes_per_s = 1});
  queue.Add(Up(CopyPriority::kBackground, {500, 500, 500}), nullptr);
  ASSERT_TRUE(TakeUp(&queue));
  queue.Add(Up(CopyPriority::kPrefetch, {500}), nullptr);
  EXPECT_EQ(queue.next_start_ns(), 0);
  EXPECT_EQ(TakeUp(&queue)->priority, CopyPriority::kPrefetch);
}

TEST(CopyQueueTest, BackgroundWorkThatIsAwaitedForgetsItsRate) {
  CopyQueue queue({.chunk_bytes = kChunkBytes, .background_bytes_per_s = 1000});
  for (int i = 0; i < 4; ++i) queue.Add(Up(CopyPriority::kBackground, {1000}), nullptr);
  EXPECT_TRUE(TakeUp(&queue));
  EXPECT_FALSE(TakeUp(&queue));
  queue.AwaitBackground(true);
  EXPECT_EQ(queue.next_start_ns(), 0);
  EXPECT_TRUE(TakeUp(&queue)) << "also what was there before";
  EXPECT_TRUE(TakeUp(&queue));
  queue.AwaitBackground(false);
  EXPECT_FALSE(TakeUp(&queue));
  EXPECT_EQ(queue.next_start_ns(), kSecondNs);
  EXPECT_TRUE(queue.Take(CopyDirection::kHostToPool, kSecondNs));
}

TEST(CopyQueueTest, ClearingReturnsWhatWasNotTakenWhole) {
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  queue.Add(Up(CopyPriority::kDemand, {1000}), nullptr);
  queue.Add(Up(CopyPriority::kDemand, {1000, 1000}), nullptr);
  queue.Add(Request(CopyDirection::kPoolToHost, CopyPriority::kBackground, {1}), nullptr);
  ASSERT_TRUE(TakeUp(&queue));
  ASSERT_TRUE(TakeUp(&queue));
  EXPECT_EQ(queue.Clear().size(), 2u);
  EXPECT_EQ(queue.next_start_ns(), INT64_MAX);
}

TEST(CopyQueueTest, TheMostUrgentDirectionIsThatOfTheEarliestAmongTheMostUrgent) {
  CopyQueue queue({.chunk_bytes = kChunkBytes});
  EXPECT_FALSE(queue.MostUrgent());
  queue.Add(Request(CopyDirection::kPoolToHost, CopyPriority::kBackground, {10}), nullptr);
  EXPECT_EQ(queue.MostUrgent(), CopyDirection::kPoolToHost);
  queue.Add(Up(CopyPriority::kDemand, {10}), nullptr);
  EXPECT_EQ(queue.MostUrgent(), CopyDirection::kHostToPool);
  queue.Add(Request(CopyDirection::kPoolToHost, CopyPriority::kDemand, {10}), nullptr);
  EXPECT_EQ(queue.MostUrgent(), CopyDirection::kHostToPool);
  ASSERT_TRUE(TakeUp(&queue));
  EXPECT_EQ(queue.MostUrgent(), CopyDirection::kPoolToHost);
}

}  // namespace
}  // namespace kvtier
