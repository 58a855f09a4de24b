// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/host_table.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <vector>

#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

constexpr HostTableShape kShape{.arena_bytes = 256 * 1024, .slab_bytes = 64 * 1024, .arena_id = 7};
constexpr uint64_t kSlotBytes = 16 * 1024;

std::vector<std::byte> NewTable() {
  std::vector<std::byte> memory(HostTable::BytesFor(kShape));
  HostTable::Format(kShape, memory);
  return memory;
}

TEST(HostTableTest, ANewTableKnowsOfNoSlot) {
  std::vector<std::byte> memory = NewTable();
  const HostTable table(kShape, memory);
  for (uint64_t slab = 0; slab < table.slabs(); ++slab) EXPECT_EQ(table.SlotBytesOf(slab), 0u);
}

TEST(HostTableTest, ASlotIsCompleteFromCompleteToClear) {
  std::vector<std::byte> memory = NewTable();
  HostTable table(kShape, memory);
  const uint64_t address = kShape.slab_bytes + 2 * kSlotBytes;
  table.BeginFill(address, kSlotBytes);
  EXPECT_EQ(table.StateOf(address), HostSlotState::kFilling);
  const HostSlotFacts facts{.uses = 4, .last_use_s = 9, .created_s = 8, .pinned_until_s = 7};
  table.Complete(address, facts);
  // As another process sees it.
  const HostTable other(kShape, memory);
  EXPECT_EQ(other.SlotBytesOf(1), kSlotBytes);
  EXPECT_EQ(other.StateOf(address), HostSlotState::kComplete);
  EXPECT_EQ(other.FactsOf(address), facts);
  EXPECT_EQ(other.StateOf(address - kSlotBytes), HostSlotState::kEmpty);
  table.Clear(address);
  EXPECT_EQ(other.StateOf(address), HostSlotState::kEmpty);
}

TEST(HostTableTest, FactsOfACompleteSlotChange) {
  std::vector<std::byte> memory = NewTable();
  HostTable table(kShape, memory);
  table.BeginFill(0, kSlotBytes);
  table.Complete(0, {.uses = 1, .retention = RetentionClass::kMemory});
  table.Update(0, {.uses = 2, .retention = RetentionClass::kExtended});
  EXPECT_EQ(table.FactsOf(0), (HostSlotFacts{.uses = 2, .retention = RetentionClass::kExtended}));
}

TEST(HostTableTest, ASlabThatIsCutAnewHasNoOldSlots) {
  std::vector<std::byte> memory = NewTable();
  HostTable table(kShape, memory);
  for (uint64_t i = 0; i < 4; ++i) {
    table.BeginFill(i * kSlotBytes, kSlotBytes);
    table.Complete(i * kSlotBytes, {});
  }
  // Not even if an earlier process cleared nothing.
  table.BeginFill(3 * HostTable::kMinSlotBytes, HostTable::kMinSlotBytes);
  EXPECT_EQ(table.SlotBytesOf(0), HostTable::kMinSlotBytes);
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(table.StateOf(i * HostTable::kMinSlotBytes),
              i == 3 ? HostSlotState::kFilling : HostSlotState::kEmpty);
  }
}

TEST(HostTableTest, AdoptionsThatDoNotEndAreCounted) {
  std::vector<std::byte> memory = NewTable();
  for (uint32_t begun = 1; begun < 4; ++begun) {
    HostTable table(kShape, memory);
    table.BeginAdoption();
    EXPECT_EQ(table.unfinished_adoptions(), begun);
  }
  HostTable(kShape, memory).EndAdoption();
  EXPECT_EQ(HostTable(kShape, memory).unfinished_adoptions(), 0u);
}

TEST(HostTableTest, TheDiskSetIsRememberedAndIsNoPartOfTheShape) {
  std::vector<std::byte> memory = NewTable();
  HostTable table(kShape, memory);
  EXPECT_EQ(table.disk_set(), Digest128{});
  table.SetDiskSet({.bytes = {1, 2, 3}});
  EXPECT_EQ(HostTable(kShape, memory).disk_set(), (Digest128{.bytes = {1, 2, 3}}));
  EXPECT_TRUE(HostTable::Check(kShape, memory));
}

TEST(HostTableTest, ATableOfAnotherShapeIsRefusedWithItsReason) {
  const std::vector<std::byte> memory = NewTable();
  EXPECT_TRUE(HostTable::Check(kShape, memory));
  const auto reason = [&](HostTableShape shape) {
    return HostTable::Check(shape, memory).error().reason;
  };
  HostTableShape other = kShape;
  other.slab_bytes /= 2;
  EXPECT_EQ(reason(other), "size_changed");
  other = kShape;
  other.boot_id.bytes[3] = 1;
  EXPECT_EQ(reason(other), "other_boot");
  other = kShape;
  other.arena_id = 8;
  EXPECT_EQ(reason(other), "other_arena");
  std::vector<std::byte> newer = memory;
  newer[8] = std::byte{99};
  EXPECT_EQ(HostTable::Check(kShape, newer).error().reason, "version");
  EXPECT_EQ(HostTable::Check(kShape, std::vector<std::byte>(100)).error().reason, "damaged");
  EXPECT_EQ(HostTable::Check(kShape, std::vector<std::byte>(memory.size())).error().reason,
            "damaged");
}

TEST(HostTableTest, ARecordInWhichABitHasChangedIsDamaged) {
  for (uint32_t bit = 0; bit < 32; ++bit) {
    std::vector<std::byte> memory = NewTable();
    HostTable table(kShape, memory);
    table.BeginFill(0, kSlotBytes);
    table.Complete(0, {.uses = 77, .retention = RetentionClass::kMemory});
    const uint32_t uses = 77;
    // The state stands before the uses.
    const auto found = std::ranges::search(memory, std::as_bytes(std::span(&uses, 1)));
    (found.begin() - 4)[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(table.StateOf(0), HostSlotState::kDamaged) << bit;
  }
}

// A changed cut gives each record another slot, which may hold a block that was freed.
TEST(HostTableTest, ACutInWhichABitHasChangedIsNone) {
  for (uint32_t bit = 0; bit < 64; ++bit) {
    std::vector<std::byte> memory = NewTable();
    HostTable table(kShape, memory);
    table.BeginFill(0, kSlotBytes);
    // It stands before the records, on the page after the head.
    memory[4096 + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(table.SlotBytesOf(0), 0u) << bit;
  }
}

// The rows read back are bounded, whatever lies there.
TEST(HostTableTest, GarbageNamesNoSlotOutsideItsSlab) {
  SeededRandom random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::byte> memory = NewTable();
    HostTable before(kShape, memory);
    const size_t stride = (memory.size() - 4096) / before.slabs();
    for (uint64_t slab = 0; slab < before.slabs(); ++slab) {
      before.BeginFill(slab * kShape.slab_bytes, 4096 * random.Between(2, 16));
    }
    for (size_t i = 4096; i < memory.size(); i += 4) {
      const bool of_cut = (i - 4096) % stride < 8;
      const auto word = static_cast<uint32_t>(random.Chance(0.5) ? random.Below(70'000) & ~0xFFFULL
                                                                 : random.Next());
      if (random.Chance(of_cut ? 0.1 : 0.7)) std::memcpy(&memory[i], &word, sizeof(word));
    }
    const HostTable table(kShape, memory);
    for (uint64_t slab = 0; slab < table.slabs(); ++slab) {
      const uint64_t slot_bytes = table.SlotBytesOf(slab);
      if (slot_bytes == 0) continue;
      ASSERT_GE(slot_bytes, HostTable::kMinSlotBytes);
      ASSERT_LE(slot_bytes, kShape.slab_bytes);
      for (uint64_t i = 0; i < kShape.slab_bytes / slot_bytes; ++i) {
        const uint64_t address = slab * kShape.slab_bytes + i * slot_bytes;
        const HostSlotState state = table.StateOf(address);
        ASSERT_LE(state, HostSlotState::kDamaged);
        if (state != HostSlotState::kComplete) continue;
        ASSERT_LE(table.FactsOf(address).retention, RetentionClass::kExtended);
      }
    }
  }
}

// The memory of a table and of one slot, shared with a child that is killed.
struct SharedMemory {
  std::byte* const at =
      static_cast<std::byte*>(::mmap(nullptr, HostTable::BytesFor(kShape) + 8192,
                                     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  [[nodiscard]] std::span<std::byte> table() const { return {at, HostTable::BytesFor(kShape)}; }
  [[nodiscard]] uint64_t* slot() const {
    return reinterpret_cast<uint64_t*>(at + HostTable::BytesFor(kShape));
  }
  ~SharedMemory() { ::munmap(at, HostTable::BytesFor(kShape) + 8192); }
};
constexpr uint64_t kSlotWords = 1024;

// Fills the slot with one number after the other, until it is killed.
[[noreturn]] void FillForEver(const SharedMemory& memory) {
  HostTable table(kShape, memory.table());
  for (uint64_t value = 1;; ++value) {
    table.BeginFill(0, kSlotBytes);
    for (uint64_t i = 0; i < kSlotWords; ++i) std::atomic_ref(memory.slot()[i]).store(value);
    table.Complete(0, {.uses = static_cast<uint32_t>(value)});
    if (value % 3 == 0) table.Update(0, {.uses = static_cast<uint32_t>(value), .last_use_s = 1});
    if (value % 2 == 0) table.Clear(0);
  }
}

TEST(HostTableTest, AProcessThatIsKilledAtAnyMomentLeavesNoHalfFilledSlotAsComplete) {
  uint64_t complete = 0;
  for (int round = 0; round < 200; ++round) {
    const SharedMemory memory;
    HostTable::Format(kShape, memory.table());
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) FillForEver(memory);
    // Until it is at work; then at once.
    while (std::atomic_ref(memory.slot()[0]).load() <= static_cast<uint64_t>(round) % 7) {
    }
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const HostTable table(kShape, memory.table());
    if (table.SlotBytesOf(0) == 0 || table.StateOf(0) != HostSlotState::kComplete) continue;
    ++complete;
    const uint64_t value = memory.slot()[0];
    for (uint64_t i = 0; i < kSlotWords; ++i) ASSERT_EQ(memory.slot()[i], value);
    ASSERT_EQ(table.FactsOf(0).uses, value);
  }
  RecordProperty("complete", static_cast<int>(complete));
}

}  // namespace
}  // namespace kvtier
