// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/mapped_arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "base/executor.h"

namespace kvtier {
namespace {

constexpr uint64_t kSlabBytes = 4 * kMiB;

std::unique_ptr<MappedArena> MakeArena(uint64_t bytes, EventQueue* loop) {
  auto arena = MappedArena::Create({.bytes = bytes, .slab_bytes = kSlabBytes}, loop);
  EXPECT_TRUE(arena) << arena.error().ToString();
  (*arena)->Prepare();
  return std::move(*arena);
}

TEST(MappedArenaTest, GrowsSliceBySliceUpToItsCapacity) {
  BlockingLoop loop;
  const auto arena = MakeArena(64 * kMiB + 123, &loop);
  EXPECT_EQ(arena->capacity_bytes(), 64 * kMiB);
  EXPECT_EQ(arena->ready_bytes(), 0u);
  EXPECT_TRUE(arena->growing());
  std::byte* next = arena->data();
  uint64_t told = 0;
  arena->OnGrowth([&](std::span<std::byte> slice) {
    EXPECT_EQ(slice.data(), next);
    EXPECT_EQ(slice.size() % kSlabBytes, 0u);
    std::ranges::fill(slice, std::byte{1});
    next += slice.size();
    told += slice.size();
    EXPECT_EQ(arena->ready_bytes(), told);
  });
  loop.RunUntil([&] { return arena->ready_bytes() == arena->capacity_bytes(); });
  EXPECT_EQ(told, 64 * kMiB);
  EXPECT_FALSE(arena->growing());
}

TEST(MappedArenaTest, TheFirstSliceIsOneSlab) {
  BlockingLoop loop;
  const auto arena = MakeArena(16 * kMiB, &loop);
  std::vector<uint64_t> slices;
  arena->OnGrowth([&](std::span<std::byte> slice) { slices.push_back(slice.size()); });
  loop.RunUntil([&] { return arena->ready_bytes() == arena->capacity_bytes(); });
  EXPECT_EQ(slices.front(), kSlabBytes);
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

TEST(MappedArenaTest, RefusesLessThanASlab) {
  BlockingLoop loop;
  const auto arena =
      MappedArena::Create({.bytes = kSlabBytes - 1, .slab_bytes = kSlabBytes}, &loop);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(arena.error().reason, "arena_too_small");
}

TEST(MappedArenaTest, RefusesMoreThanTheMachineHas) {
  BlockingLoop loop;
  const auto arena =
      MappedArena::Create({.bytes = uint64_t{1} << 50, .slab_bytes = kSlabBytes}, &loop);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(arena.error().reason, "arena_exceeds_memory");
}

// Pins until the test says otherwise; remembers the pinned memory.
class FakePinner final : public HostPinner {
 public:
  Status Pin(std::span<std::byte> memory) override {
    const std::lock_guard lock(mutex_);
    if (left_ == 0) return MakeError(ErrorCode::kResourceExhausted, "no_more");
    --left_;
    EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte b) { return b == std::byte{0}; }));
    pinned_bytes_ += memory.size();
    largest_bytes_ = std::max<uint64_t>(largest_bytes_, memory.size());
    return {};
  }
  void Unpin(std::span<std::byte> memory) override {
    const std::lock_guard lock(mutex_);
    pinned_bytes_ -= memory.size();
  }
  void Allow(int slices) { left_ = slices; }
  uint64_t pinned_bytes() const {
    const std::lock_guard lock(mutex_);
    return pinned_bytes_;
  }
  uint64_t largest_bytes() const {
    const std::lock_guard lock(mutex_);
    return largest_bytes_;
  }

 private:
  mutable std::mutex mutex_;
  uint64_t largest_bytes_ = 0;
  int left_ = 1000;
  uint64_t pinned_bytes_ = 0;
};

TEST(MappedArenaTest, SlicesArePinnedBeforeTheyAreUsedAndUnpinnedAtTheEnd) {
  BlockingLoop loop;
  FakePinner pinner;
  {
    const auto arena = MappedArena::Create(
        {.bytes = 32 * kMiB, .slab_bytes = kSlabBytes, .pinner = &pinner}, &loop);
    ASSERT_TRUE(arena);
    (*arena)->Prepare();
    (*arena)->OnGrowth(
        [&](std::span<std::byte>) { EXPECT_GE(pinner.pinned_bytes(), (*arena)->ready_bytes()); });
    loop.RunUntil([&] { return (*arena)->ready_bytes() == 32 * kMiB; });
    EXPECT_EQ(pinner.pinned_bytes(), 32 * kMiB);
  }
  EXPECT_EQ(pinner.pinned_bytes(), 0u);
}

TEST(MappedArenaTest, ASmallerArenaUnpinsWholePiecesAndGivesTheirPagesBack) {
  BlockingLoop loop;
  FakePinner pinner;
  bool given_back = false;
  const auto arena = MappedArena::Create({.bytes = 32 * kMiB,
                                          .slab_bytes = kSlabBytes,
                                          .pinner = &pinner,
                                          .pinned_at_once_bytes = 2 * kSlabBytes,
                                          .on_given_back = [&](uint64_t) { given_back = true; }},
                                         &loop);
  ASSERT_TRUE(arena);
  (*arena)->Prepare();
  (*arena)->OnGrowth([](std::span<std::byte> slice) { std::ranges::fill(slice, std::byte{7}); });
  loop.RunUntil([&] { return (*arena)->ready_bytes() == 32 * kMiB; });
  // Pieces end after slabs 1, 3, 5 and 7.
  (*arena)->Resize(4 * kSlabBytes);
  EXPECT_EQ((*arena)->ready_bytes(), 4 * kSlabBytes);
  loop.RunUntil([&] { return given_back; });
  EXPECT_EQ(pinner.pinned_bytes(), 5 * kSlabBytes);
  EXPECT_EQ((*arena)->data()[4 * kSlabBytes], std::byte{7}) << "a part of the last piece";
  EXPECT_EQ((*arena)->data()[5 * kSlabBytes], std::byte{0});
  std::ranges::fill((*arena)->data() + 4 * kSlabBytes, (*arena)->data() + 5 * kSlabBytes,
                    std::byte{0});
  (*arena)->Resize(8 * kSlabBytes);
  loop.RunUntil([&] { return (*arena)->ready_bytes() == 32 * kMiB; });
  EXPECT_EQ(pinner.pinned_bytes(), 32 * kMiB);
  EXPECT_EQ((*arena)->data()[0], std::byte{7});
}

TEST(MappedArenaTest, SizesThatFollowEachOtherEndAtTheLast) {
  BlockingLoop loop;
  const auto arena = MakeArena(16 * kMiB, &loop);
  uint64_t end = 0;  // of the last slice
  arena->OnGrowth([&](std::span<std::byte> slice) {
    end = static_cast<uint64_t>(slice.data() - arena->data()) + slice.size();
    std::ranges::fill(slice, std::byte{1});
  });
  for (const uint64_t slabs : {9, 2, 30, 1, 3, 40, 5, 12}) {
    arena->Resize(slabs * kSlabBytes);
    (void)loop.RunPosted();
    EXPECT_LE(arena->ready_bytes(), slabs * kSlabBytes);
  }
  loop.RunUntil([&] { return arena->ready_bytes() == 12 * kSlabBytes; });
  EXPECT_FALSE(arena->growing());
  EXPECT_EQ(end, 12 * kSlabBytes);
}

TEST(MappedArenaTest, WhatCannotBePinnedIsSaidOnceAndUsedAllTheSame) {
  BlockingLoop loop;
  FakePinner pinner;
  pinner.Allow(1);
  std::vector<std::string> notes;
  {
    const auto arena =
        MappedArena::Create({.bytes = 64 * kMiB,
                             .slab_bytes = kSlabBytes,
                             .pinner = &pinner,
                             .log = [&](const std::string& note) { notes.push_back(note); }},
                            &loop);
    ASSERT_TRUE(arena);
    (*arena)->Prepare();
    loop.RunUntil([&] { return (*arena)->ready_bytes() == 64 * kMiB; });
  }
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("not pinned from"), std::string::npos) << notes[0];
  EXPECT_EQ(pinner.pinned_bytes(), 0u);
}

// A piece holds the driver's locks; slices are as large as an I/O engine may want them.
TEST(MappedArenaTest, SlicesArePinnedInPiecesOfWholeSlabs) {
  BlockingLoop loop;
  FakePinner pinner;
  const auto arena = MappedArena::Create({.bytes = 64 * kMiB,
                                          .slab_bytes = kSlabBytes,
                                          .pinner = &pinner,
                                          .pinned_at_once_bytes = 2 * kSlabBytes + 1},
                                         &loop);
  ASSERT_TRUE(arena);
  (*arena)->Prepare();
  loop.RunUntil([&] { return (*arena)->ready_bytes() == 64 * kMiB; });
  EXPECT_EQ(pinner.pinned_bytes(), 64 * kMiB);
  EXPECT_EQ(pinner.largest_bytes(), 2 * kSlabBytes);
}

TEST(MappedArenaTest, TakesNoMemoryBeforeItIsAskedTo) {
  BlockingLoop loop;
  FakePinner pinner;
  const auto arena =
      MappedArena::Create({.bytes = 8 * kMiB, .slab_bytes = kSlabBytes, .pinner = &pinner}, &loop);
  ASSERT_TRUE(arena);
  EXPECT_EQ((*arena)->ready_bytes(), 0u);
  EXPECT_EQ((*arena)->capacity_bytes(), 8 * kMiB);
}

TEST(MappedArenaTest, ANumaNodeThatIsNotThereIsSaid) {
  BlockingLoop loop;
  std::vector<std::string> notes;
  const auto arena =
      MappedArena::Create({.bytes = 8 * kMiB,
                           .slab_bytes = kSlabBytes,
                           .numa_node = 900,
                           .log = [&](const std::string& note) { notes.push_back(note); }},
                          &loop);
  ASSERT_TRUE(arena);
  (*arena)->Prepare();
  loop.RunUntil([&] { return (*arena)->ready_bytes() == 8 * kMiB; });
  EXPECT_EQ(notes.size(), 1u);
}

// An arena that is kept, with 16 MiB unless told otherwise, of what `left` describes if it is
// given.
std::unique_ptr<MappedArena> MakeKeptArena(EventQueue* loop, const MappedArena* left = nullptr,
                                           uint64_t bytes = 16 * kMiB) {
  MappedArenaOptions options{.bytes = bytes, .slab_bytes = kSlabBytes, .keep = true};
  if (left != nullptr) {
    options.kept_arena = UniqueFd(::dup(left->arena_descriptor()));
    options.kept_table = UniqueFd(::dup(left->table_descriptor()));
  }
  auto arena = MappedArena::Create(std::move(options), loop);
  EXPECT_TRUE(arena) << arena.error().ToString();
  (*arena)->Prepare();
  return std::move(*arena);
}

TEST(KeptArenaTest, ASecondArenaOverTheDescriptorsOfTheFirstHasTheSameBytesAndTheSameTable) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  EXPECT_EQ(first->adoption(), "none");
  ASSERT_NE(first->table(), nullptr);
  loop.RunUntil([&] { return first->ready_bytes() == 16 * kMiB; });
  std::memset(first->data(), 7, 16 * kMiB);
  first->table()->BeginFill(kSlabBytes, 8192);
  first->table()->Complete(kSlabBytes, {.uses = 3});
  const auto second = MakeKeptArena(&loop, first.get());
  EXPECT_EQ(second->adoption(), "adopted");
  loop.RunUntil([&] { return second->ready_bytes() == 16 * kMiB; });
  EXPECT_EQ(std::memcmp(first->data(), second->data(), 16 * kMiB), 0);
  EXPECT_EQ(second->data()[16 * kMiB - 1], std::byte{7});
  EXPECT_EQ(second->table()->SlotBytesOf(0), 0u);
  EXPECT_EQ(second->table()->SlotBytesOf(1), 8192u);
  EXPECT_EQ(second->table()->FactsOf(kSlabBytes).uses, 3u);
}

TEST(KeptArenaTest, MemoryThatIsNotKeptHasNoDescriptorsAndNoTable) {
  BlockingLoop loop;
  const auto arena = MakeArena(16 * kMiB, &loop);
  EXPECT_EQ(arena->adoption(), "off");
  EXPECT_EQ(arena->arena_descriptor(), -1);
  EXPECT_EQ(arena->table_descriptor(), -1);
  EXPECT_EQ(arena->table(), nullptr);
}

// Fills a slot in the first slab and one in the last.
void FillEnds(MappedArena* arena, BlockingLoop* loop) {
  loop->RunUntil([&] { return arena->ready_bytes() == arena->capacity_bytes(); });
  for (const uint64_t address : {uint64_t{0}, arena->capacity_bytes() - kSlabBytes}) {
    arena->table()->BeginFill(address, 8192);
    std::memset(arena->data() + address, 7, 8192);
    arena->table()->Complete(address, {.uses = 3});
  }
}

TEST(KeptArenaTest, ALargerArenaHasAllThatTheSmallerOneHad) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  FillEnds(first.get(), &loop);
  const auto larger = MakeKeptArena(&loop, first.get(), 32 * kMiB);
  EXPECT_EQ(larger->adoption(), "adopted");
  EXPECT_EQ(larger->left_bytes(), 16 * kMiB);
  for (const uint64_t address : {uint64_t{0}, 16 * kMiB - kSlabBytes}) {
    EXPECT_EQ(larger->table()->StateOf(address), HostSlotState::kComplete);
    EXPECT_EQ(larger->data()[address + 8191], std::byte{7});
  }
  EXPECT_EQ(larger->table()->SlotBytesOf(16 * kMiB / kSlabBytes), 0u);
  FillEnds(larger.get(), &loop);
  EXPECT_EQ(MakeKeptArena(&loop, larger.get(), 32 * kMiB)->left_bytes(), 32 * kMiB);
}

TEST(KeptArenaTest, ASmallerArenaHasWhatFitsAndTheRestIsGivenBackForGood) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop, nullptr, 32 * kMiB);
  FillEnds(first.get(), &loop);
  const auto allocated = [&] {
    struct stat info {};
    EXPECT_EQ(::fstat(first->arena_descriptor(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  EXPECT_EQ(allocated(), 32 * kMiB);
  const auto smaller = MakeKeptArena(&loop, first.get(), 16 * kMiB);
  EXPECT_EQ(smaller->left_bytes(), 32 * kMiB);
  EXPECT_EQ(smaller->table()->StateOf(0), HostSlotState::kComplete);
  EXPECT_EQ(smaller->data()[8191], std::byte{7});
  EXPECT_EQ(allocated(), 16 * kMiB);
  const auto larger = MakeKeptArena(&loop, smaller.get(), 32 * kMiB);
  EXPECT_EQ(larger->table()->StateOf(0), HostSlotState::kComplete);
  EXPECT_EQ(larger->table()->SlotBytesOf(32 * kMiB / kSlabBytes - 1), 0u)
      << "what was cut off does not come back";
}

TEST(KeptArenaTest, ASizeThatNoArenaHasIsNotAdopted) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  const uint64_t garbage = kSlabBytes + 1;
  ASSERT_EQ(::pwrite(first->table_descriptor(), &garbage, sizeof(garbage), 16), 8);
  EXPECT_EQ(MakeKeptArena(&loop, first.get())->adoption(), "damaged");
}

TEST(KeptArenaTest, AnotherSizeOfSlabsIsNotAdopted) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  const auto other_slabs =
      MappedArena::Create({.bytes = 16 * kMiB,
                           .slab_bytes = 2 * kSlabBytes,
                           .keep = true,
                           .kept_arena = UniqueFd(::dup(first->arena_descriptor())),
                           .kept_table = UniqueFd(::dup(first->table_descriptor()))},
                          &loop);
  ASSERT_TRUE(other_slabs);
  EXPECT_EQ((*other_slabs)->adoption(), "size_changed");
}

TEST(KeptArenaTest, DescriptorsThatAreNotAPairAreNotAdopted) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  const auto other = MakeKeptArena(&loop);
  const auto adoption_of = [&](int arena_fd, int table_fd) {
    const auto arena = MappedArena::Create({.bytes = 16 * kMiB,
                                            .slab_bytes = kSlabBytes,
                                            .keep = true,
                                            .kept_arena = UniqueFd(::dup(arena_fd)),
                                            .kept_table = UniqueFd(::dup(table_fd))},
                                           &loop);
    EXPECT_TRUE(arena);
    return (*arena)->adoption();
  };
  EXPECT_EQ(adoption_of(first->arena_descriptor(), other->table_descriptor()), "other_arena");
  EXPECT_EQ(adoption_of(first->arena_descriptor(), -1), "incomplete");
  EXPECT_EQ(adoption_of(first->table_descriptor(), first->arena_descriptor()), "size_changed");
  const UniqueFd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(adoption_of(file.get(), first->table_descriptor()), "not_sealed");
}

TEST(KeptArenaTest, AHeadThatWasOverwrittenIsNotAdopted) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  const uint64_t garbage = 0x5A5A5A5A5A5A5A5A;
  ASSERT_EQ(::pwrite(first->table_descriptor(), &garbage, sizeof(garbage), 0), 8);
  EXPECT_EQ(MakeKeptArena(&loop, first.get())->adoption(), "damaged");
}

// A daemon that dies of the blocks that it finds must not do so for ever.
TEST(KeptArenaTest, MemoryThatNoDaemonHasLookedAtToTheEndIsGivenUpAfterSomeDeaths) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  const auto deaths_until_given_up = [&] {
    int deaths = 0;
    for (; MakeKeptArena(&loop, first.get())->adoption() == "adopted"; ++deaths) {
      first->table()->BeginAdoption();
    }
    EXPECT_EQ(MakeKeptArena(&loop, first.get())->adoption(), "adoption_unfinished");
    return deaths;
  };
  EXPECT_EQ(deaths_until_given_up(), 5);
  first->table()->EndAdoption();
  EXPECT_EQ(deaths_until_given_up(), 5);
}

// Touching or pinning the memory may be what ends the process.
TEST(KeptArenaTest, ADeathCountsFromThePreparationOnWhereBlocksWereLeft) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  EXPECT_EQ(first->table()->unfinished_adoptions(), 0u);
  first->table()->BeginFill(0, 8192);
  EXPECT_EQ(MakeKeptArena(&loop, first.get())->table()->unfinished_adoptions(), 1u);
}

TEST(KeptArenaTest, AnOrderlyEndIsNoDeath) {
  BlockingLoop loop;
  const auto first = MakeKeptArena(&loop);
  for (int ends = 0; ends < 6; ++ends) {
    const auto next = MakeKeptArena(&loop, first.get());
    ASSERT_EQ(next->adoption(), "adopted") << ends;
    if (ends > 2) next->table()->BeginAdoption();
  }
}

TEST(KeptArenaTest, MemoryCannotBeCutByAnotherHolder) {
  BlockingLoop loop;
  const auto arena = MakeKeptArena(&loop);
  EXPECT_NE(::ftruncate(arena->arena_descriptor(), 0), 0);
  EXPECT_NE(::ftruncate(arena->table_descriptor(), 0), 0);
}

}  // namespace
}  // namespace kvtier
