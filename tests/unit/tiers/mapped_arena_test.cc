#include "tiers/mapped_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/fakes/blocking_loop.h"

namespace kvtier {
namespace {

constexpr uint64_t kChunkBytes = 4 * kMiB;

std::unique_ptr<MappedArena> MakeArena(uint64_t bytes, EventQueue* loop) {
  auto arena = MappedArena::Create({.bytes = bytes, .chunk_bytes = kChunkBytes}, loop);
  EXPECT_TRUE(arena) << arena.error().ToString();
  return std::move(*arena);
}

TEST(MappedArenaTest, GrowsSliceBySliceUpToItsCapacity) {
  BlockingLoop loop;
  const auto arena = MakeArena(64 * kMiB + 123, &loop);
  EXPECT_EQ(arena->capacity_bytes(), 64 * kMiB);
  EXPECT_EQ(arena->ready_bytes(), 0u);
  std::byte* next = arena->data();
  uint64_t told = 0;
  arena->OnGrowth([&](std::span<std::byte> slice) {
    EXPECT_EQ(slice.data(), next);
    EXPECT_EQ(slice.size() % kChunkBytes, 0u);
    std::ranges::fill(slice, std::byte{1});
    next += slice.size();
    told += slice.size();
    EXPECT_EQ(arena->ready_bytes(), told);
  });
  loop.RunUntil([&] { return arena->ready_bytes() == arena->capacity_bytes(); });
  EXPECT_EQ(told, 64 * kMiB);
}

TEST(MappedArenaTest, TheFirstSliceIsOneChunk) {
  BlockingLoop loop;
  const auto arena = MakeArena(16 * kMiB, &loop);
  std::vector<uint64_t> slices;
  arena->OnGrowth([&](std::span<std::byte> slice) { slices.push_back(slice.size()); });
  loop.RunUntil([&] { return arena->ready_bytes() == arena->capacity_bytes(); });
  EXPECT_EQ(slices.front(), kChunkBytes);
}

TEST(MappedArenaTest, AListenerSetLateIsToldOfAllThatIsReady) {
  BlockingLoop loop;
  const auto arena = MakeArena(16 * kMiB, &loop);
  loop.RunUntil([&] { return arena->ready_bytes() == arena->capacity_bytes(); });
  uint64_t told = 0;
  arena->OnGrowth([&](std::span<std::byte> slice) { told += slice.size(); });
  EXPECT_EQ(told, 16 * kMiB);
}

TEST(MappedArenaTest, SaysNothingAfterItsEnd) {
  BlockingLoop loop;
  bool told = false;
  {
    const auto arena = MakeArena(64 * kMiB, &loop);
    arena->OnGrowth([&](std::span<std::byte>) { told = true; });
  }
  loop.RunPosted();
  EXPECT_FALSE(told);
}

TEST(MappedArenaTest, RefusesLessThanAChunk) {
  BlockingLoop loop;
  const auto arena =
      MappedArena::Create({.bytes = kChunkBytes - 1, .chunk_bytes = kChunkBytes}, &loop);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(arena.error().reason, "arena_too_small");
}

TEST(MappedArenaTest, RefusesMoreThanTheMachineHas) {
  BlockingLoop loop;
  const auto arena =
      MappedArena::Create({.bytes = uint64_t{1} << 50, .chunk_bytes = kChunkBytes}, &loop);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(arena.error().reason, "arena_exceeds_memory");
}

}  // namespace
}  // namespace kvtier
