// SPDX-License-Identifier: Apache-2.0
// Memory that is registered with io_uring once.
#include <gtest/gtest.h>

#include "tiers/storage/io_engine.h"

namespace kvtier {
namespace {

// Addresses only; nothing is read or written.
std::byte* At(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

void AddAll(RegisteredMemory* memory, std::span<std::byte> span) {
  for (const auto& entry : memory->Plan(span)) memory->Add(entry);
}

TEST(RegisteredMemoryTest, CutsMemoryIntoEntriesThatTheKernelTakes) {
  RegisteredMemory memory;
  const auto plan = memory.Plan({At(kGiB), 2 * kGiB + 4096});
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].memory.size(), kMaxRegisteredBytes);
  EXPECT_EQ(plan[2].memory.size(), 4096u);
  EXPECT_EQ(plan[2].number, 2);
}

TEST(RegisteredMemoryTest, FindsOnlyWhatLiesInOneEntry) {
  RegisteredMemory memory;
  AddAll(&memory, {At(10 * kGiB), 2 * kGiB});
  AddAll(&memory, {At(4 * kGiB), kMiB});
  EXPECT_EQ(memory.Find(At(10 * kGiB), 4096), 0);
  EXPECT_EQ(memory.Find(At(12 * kGiB - 4096), 4096), 1);
  EXPECT_EQ(memory.Find(At(4 * kGiB), kMiB), 2);
  EXPECT_EQ(memory.Find(At(11 * kGiB - 4096), 8192), kNotRegistered);
  EXPECT_EQ(memory.Find(At(12 * kGiB), 1), kNotRegistered);
  EXPECT_EQ(memory.Find(At(4 * kGiB - 1), 2), kNotRegistered);
  EXPECT_EQ(memory.Find(At(kGiB), 1), kNotRegistered);
}

TEST(RegisteredMemoryTest, DoesNotRegisterTwice) {
  RegisteredMemory memory;
  AddAll(&memory, {At(10 * kGiB), kMiB});
  EXPECT_TRUE(memory.Plan({At(10 * kGiB), kMiB}).empty());
}

TEST(RegisteredMemoryTest, StopsAtTheEndOfTheTable) {
  RegisteredMemory memory;
  for (int i = 0; i < kMaxRegisteredEntries; ++i) {
    AddAll(&memory, {At((1 + static_cast<uint64_t>(i)) * kMiB), 4096});
  }
  EXPECT_TRUE(memory.Plan({At(kGiB * 100), 4096}).empty());
}

}  // namespace
}  // namespace kvtier
