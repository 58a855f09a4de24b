// SPDX-License-Identifier: Apache-2.0
#include "gpu/piece_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/units.h"

namespace kvtier {
namespace {

// Memory is never touched here, so that any number will do as an address.
std::byte* Address(uint64_t at) { return reinterpret_cast<std::byte*>(kGiB + at); }

std::vector<CopyPiece> Pieces(size_t count, uint64_t bytes, uint64_t pool_stride,
                              uint64_t host_stride) {
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < count; ++i) {
    pieces.push_back(
        {.pool = Address(i * pool_stride), .host = Address(i * host_stride), .bytes = bytes});
  }
  return pieces;
}

TEST(PieceRuns, PartsOfABlockThatLieEquallyFarApartAreOneRun) {
  const PieceRun run = FirstRun(Pieces(32, 2 * kKiB, 128 * kMiB / 32, 2 * kKiB));
  EXPECT_EQ(run.pieces, 32);
  EXPECT_EQ(run.bytes, 2 * kKiB);
  EXPECT_EQ(run.pool_stride, 4 * kMiB);
  EXPECT_EQ(run.host_stride, 2 * kKiB);
  EXPECT_EQ(run.HostSpan(), 64 * kKiB);
}

TEST(PieceRuns, ARunEndsWhereAStepOrALengthChanges) {
  std::vector<CopyPiece> pieces = Pieces(16, kKiB, 8 * kKiB, kKiB);
  pieces[10].pool += 16;
  EXPECT_EQ(FirstRun(pieces).pieces, 10);
  pieces = Pieces(16, kKiB, 8 * kKiB, kKiB);
  pieces[7].host += 16;
  EXPECT_EQ(FirstRun(pieces).pieces, 7);
  pieces = Pieces(16, kKiB, 8 * kKiB, kKiB);
  pieces[5].bytes -= 16;
  EXPECT_EQ(FirstRun(pieces).pieces, 5);
}

TEST(PieceRuns, WhatNoStridedCopyMayHaveStaysAlone) {
  const auto alone = [](std::vector<CopyPiece> pieces) { return FirstRun(pieces).pieces == 1; };
  EXPECT_TRUE(alone(Pieces(1, kKiB, 0, 0)));
  EXPECT_TRUE(alone(Pieces(3, kKiB, 8 * kKiB, kKiB))) << "too few";
  EXPECT_TRUE(alone(Pieces(8, kMaxRunPieceBytes + 1, kMiB, kMiB))) << "large enough alone";
  EXPECT_TRUE(alone(Pieces(8, kKiB, kMaxRunStride + 1, kKiB))) << "too far apart";
  EXPECT_TRUE(alone(Pieces(8, kKiB, 8 * kKiB, kKiB - 1))) << "the rows overlap";
  EXPECT_TRUE(alone(Pieces(8, kKiB, 0, kKiB))) << "all at one place";
  std::vector<CopyPiece> downwards = Pieces(8, kKiB, 8 * kKiB, kKiB);
  std::ranges::reverse(downwards);
  EXPECT_TRUE(alone(downwards));
}

TEST(PieceRuns, RunsTakenOneAfterAnotherMoveEveryPieceOnce) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<CopyPiece> pieces;
    uint64_t pool = 0, host = 0;
    const size_t count = 1 + random() % 40;
    while (pieces.size() < count) {
      const uint64_t bytes = 1 + random() % 3;
      const uint64_t pool_stride = random() % 6, host_stride = random() % 6;
      for (size_t i = 1 + random() % 8; i > 0; --i) {
        pieces.push_back({.pool = Address(pool), .host = Address(host), .bytes = bytes});
        pool += pool_stride;
        host += host_stride;
      }
    }
    for (std::span left(pieces); !left.empty();) {
      const PieceRun run = FirstRun(left);
      ASSERT_LE(run.pieces, left.size());
      for (uint64_t i = 0; i < run.pieces; ++i) {
        ASSERT_EQ(left[i].pool, run.pool + i * run.pool_stride);
        ASSERT_EQ(left[i].host, run.host + i * run.host_stride);
        ASSERT_EQ(left[i].bytes, run.bytes);
      }
      if (run.pieces > 1) {
        ASSERT_GE(run.pool_stride, run.bytes);
        ASSERT_GE(run.host_stride, run.bytes);
      }
      left = left.subspan(run.pieces);
    }
  }
}

}  // namespace
}  // namespace kvtier
