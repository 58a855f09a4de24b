// SPDX-License-Identifier: Apache-2.0
// The tables of a block's states and events: what they forbid ends the process, and the
// documentation shows them as they are.
#include "tiers/directory/block_lifecycle.h"

#include <gtest/gtest.h>

#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "tiers/directory/pool_blocks.h"

namespace kvtier {
namespace {

constexpr EntryIndex kEntry{7};

uint32_t BitsSet(std::span<const Transition> rows) {
  uint32_t bits = 0;
  for (const Transition& row : rows) bits |= row.sets;
  return bits;
}

uint32_t BitsCleared(std::span<const Transition> rows) {
  uint32_t bits = 0;
  for (const Transition& row : rows) bits |= row.clears;
  return bits;
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
  for (const Transition& row : kPoolTransitions) EXPECT_EQ(row.sets & row.clears, 0u) << row.event;
  for (const Transition& row : kBlockTransitions) EXPECT_EQ(row.sets & row.clears, 0u) << row.event;
}

TEST(BlockLifecycle, EveryEventSaysWhatFiresIt) {
  for (const Transition& row : kPoolTransitions) EXPECT_FALSE(row.fired_by.empty()) << row.event;
  for (const Transition& row : kBlockTransitions) EXPECT_FALSE(row.fired_by.empty()) << row.event;
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
  blocks[block].references = 1;
  EXPECT_FALSE(blocks[block].cached());
}

TEST(BlockLifecycle, DocumentationShowsTheTables) {
  std::ifstream file(KVTIER_SOURCE_DIR "/docs/ARCHITECTURE.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string tables = LifecycleMarkdown();
  EXPECT_NE(text.str().find(tables), std::string::npos)
      << "docs/ARCHITECTURE.md, \"One block's life\", should read:\n"
      << tables;
}

}  // namespace
}  // namespace kvtier
