// SPDX-License-Identifier: Apache-2.0
// The tables of a block's states and events: what they forbid ends the process.
#include "tiers/directory/block_lifecycle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "tiers/directory/pool_blocks.h"

namespace kvtier {
namespace {

constexpr EntryIndex kEntry{7};

uint32_t BitsSet(const auto& rows) {
  uint32_t bits = 0;
  for (const auto& row : rows) bits |= row.sets;
  return bits;
}

uint32_t BitsCleared(const auto& rows) {
  uint32_t bits = 0;
  for (const auto& row : rows) bits |= row.clears;
  return bits;
}

// The sources of the cache but for the tables themselves.
std::string SourcesOfTheCache() {
  std::string text;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(KVTIER_SOURCE_DIR "/tiers")) {
    if (!file.is_regular_file() || file.path().filename() == "block_transitions.h") continue;
    std::ifstream stream(file.path());
    text.append(std::istreambuf_iterator<char>(stream), {});
  }
  return text;
}

TEST(BlockLifecycle, EveryStateOfAPoolBlockCanBeEnteredAndLeft) {
  constexpr uint32_t kAll = (1u << PoolBits::kNames.size()) - 1;
  EXPECT_EQ(BitsSet(kPoolTransitions), kAll);
  EXPECT_EQ(BitsCleared(kPoolTransitions), kAll);
}

TEST(BlockLifecycle, EveryStateOfAnEntryCanBeEnteredAndLeft) {
  constexpr uint32_t kAll = (1u << EntryBits::kNames.size()) - 1;
  EXPECT_EQ(BitsSet(kBlockTransitions), kAll);
  EXPECT_EQ(BitsCleared(kBlockTransitions), kAll);
}

TEST(BlockLifecycle, NoEventBothSetsAndClearsAState) {
  for (const auto& row : kPoolTransitions) EXPECT_EQ(row.sets & row.clears, 0u) << row.name;
  for (const auto& row : kBlockTransitions) EXPECT_EQ(row.sets & row.clears, 0u) << row.name;
}

TEST(BlockLifecycle, EveryEventIsFiredSomewhere) {
  const std::string sources = SourcesOfTheCache();
  const auto is_fired = [&](std::string_view events, std::string_view name) {
    const std::string use = fmt::format("{}::k{}", events, name);
    for (size_t at = sources.find(use); at != std::string::npos; at = sources.find(use, at + 1)) {
      if (std::isalnum(static_cast<unsigned char>(sources[at + use.size()])) == 0) return true;
    }
    return false;
  };
  for (const auto& row : kPoolTransitions) EXPECT_TRUE(is_fired("PoolEvent", row.name)) << row.name;
  for (const auto& row : kBlockTransitions) {
    EXPECT_TRUE(is_fired("BlockEvent", row.name)) << row.name;
  }
}

TEST(BlockLifecycleDeathTest, ReferenceCannotBeDroppedThatIsNotHeld) {
  PoolBlocks blocks(2);
  const BlockIndex block = blocks.TakeCommitted(kEntry);
  blocks.Reference(block, 2);
  EXPECT_DEATH(blocks.Unreference(block, 3), "a block cannot Unreference: it is committed");
}

TEST(BlockLifecycleDeathTest, FreeBlockIsNotReferenced) {
  PoolBlocks blocks(2);
  EXPECT_DEATH(blocks.Reference(BlockIndex(0)), "a block cannot Reference: it is free");
}

TEST(BlockLifecycle, OnlyTheFirstAndTheLastReferenceChangeWhetherABlockIsHeld) {
  PoolBlocks blocks(2);
  const BlockIndex block = blocks.TakeCommitted(kEntry);
  EXPECT_TRUE(blocks.Reference(block));
  EXPECT_FALSE(blocks.Reference(block));
  EXPECT_FALSE(blocks.Unreference(block));
  EXPECT_TRUE(blocks.Unreference(block));
}

TEST(BlockLifecycleDeathTest, LoadCannotEndThatHasNotBegun) {
  PoolBlocks blocks(2);
  const BlockIndex block = blocks.TakeCommitted(kEntry);
  EXPECT_DEATH(blocks.EndLoad(block), "a block cannot EndLoad: it is committed");
}

TEST(BlockLifecycleDeathTest, BlockThatIsBeingCopiedCannotBeFreed) {
  PoolBlocks blocks(2);
  const BlockIndex block = blocks.TakeCommitted(kEntry);
  blocks.Pin(block);
  EXPECT_DEATH(blocks.Free(block, nullptr), "a block cannot Free");
}

TEST(BlockLifecycleDeathTest, BlockThatAwaitsItsBytesIsNotCopiedFrom) {
  PoolBlocks blocks(2);
  const BlockIndex block = blocks.TakeCommitted(kEntry);
  blocks.BeginLoad(block);
  EXPECT_DEATH(blocks.Pin(block), "a block cannot Pin: it is committed, loading");
}

TEST(BlockLifecycle, BlockIsCachedOnceItsBytesAreHereAndNothingHoldsIt) {
  PoolBlocks blocks(2);
  const BlockIndex block = blocks.TakeCommitted(kEntry);
  blocks.BeginLoad(block);
  EXPECT_EQ(blocks.loading(), 1u);
  EXPECT_FALSE(blocks[block].cached());
  blocks.EndLoad(block);
  EXPECT_EQ(blocks.loading(), 0u);
  EXPECT_TRUE(blocks[block].cached());
  blocks.Reference(block);
  EXPECT_FALSE(blocks[block].cached());
}

}  // namespace
}  // namespace kvtier
