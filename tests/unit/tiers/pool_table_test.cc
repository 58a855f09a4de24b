// SPDX-License-Identifier: Apache-2.0
// The table beside a kept pool, read by another life of the daemon than wrote it.
#include "tiers/memory/pool_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tiers/directory/pool_blocks.h"

namespace kvtier {
namespace {

constexpr uint32_t kBlocks = 600;
constexpr BlockIndex kBlock{3};

class PoolTableTest : public ::testing::Test {
 protected:
  PoolTableTest() : memory_(PoolTable::BytesFor(kBlocks)) {
    description_.identity = {.tenant = "tenant", .block_bytes = 4096};
    description_.identity.model.bytes.fill(7);
    description_.generation = 42;
    description_.memory_bytes = kBlocks * 4096;
    description_.blocks = kBlocks;
    description_.boot_id.bytes.fill(1);
    PoolTable::Format(description_, memory_);
    table_.emplace(memory_);
    table_->SetReady();
  }
  [[nodiscard]] Result<PoolDescription> Read() const {
    return PoolTable::Read(memory_, description_.boot_id);
  }
  [[nodiscard]] std::string Refusal() const {
    const Result<PoolDescription> read = Read();
    return read ? "" : read.error().reason;
  }
  [[nodiscard]] static PoolEntryFacts Facts() {
    PoolEntryFacts facts{.parent = BlockHash{}, .checksum = PayloadChecksum{}, .depth = 9};
    facts.hash.bytes.fill(3);
    facts.parent->bytes.fill(4);
    facts.checksum->bytes.fill(5);
    facts.tokens = 16;
    facts.retention = RetentionClass::kMemory;
    facts.uses = 2;
    facts.last_use_s = 100;
    facts.created_s = 90;
    facts.pinned_until_s = 80;
    return facts;
  }

  [[nodiscard]] static SessionIdentity Identity(uint32_t pid) {
    SessionIdentity identity{
        .process = {static_cast<int32_t>(pid), pid + 1}, .uid = 9, .session = SessionId(pid + 2)};
    identity.secret.bytes.fill(static_cast<uint8_t>(pid));
    return identity;
  }

  static void ExpectTrueOrNothing(const PoolTable& table) {
    if (!table.Whole(kBlock)) return;
    const auto facts = table.FactsOf(kBlock);
    if (!facts) return;
    EXPECT_EQ(facts->hash, Facts().hash);
    EXPECT_EQ(facts->checksum, Facts().checksum);
    EXPECT_EQ(facts->retention, RetentionClass::kMemory);
  }

  std::vector<std::byte> memory_;
  PoolDescription description_;
  std::optional<PoolTable> table_;
};

TEST_F(PoolTableTest, AnotherLifeReadsWhatWasWritten) {
  ASSERT_TRUE(Read());
  EXPECT_EQ(*Read(), description_);
  table_->Hold(kBlock, 12);
  table_->Complete(kBlock, Facts(), true);
  const PoolTable again(memory_);
  EXPECT_EQ(again.StateOf(kBlock), PoolEntryState::kReferenced);
  EXPECT_EQ(again.GenerationOf(kBlock), 12u);
  EXPECT_EQ(again.FactsOf(kBlock), Facts());
  EXPECT_EQ(again.StateOf(BlockIndex(4)), PoolEntryState::kFree);
}

TEST_F(PoolTableTest, ABlockIsWholeOnlyBetweenCompleteAndHold) {
  table_->Hold(kBlock, 1);
  EXPECT_FALSE(table_->Whole(kBlock));
  table_->Complete(kBlock, Facts(), false);
  EXPECT_EQ(table_->StateOf(kBlock), PoolEntryState::kCached);
  table_->SetReferenced(kBlock, true);
  EXPECT_EQ(table_->StateOf(kBlock), PoolEntryState::kReferenced);
  table_->Hold(kBlock, 2);
  EXPECT_EQ(table_->StateOf(kBlock), PoolEntryState::kHeld);
  table_->SetFree(kBlock);
  EXPECT_EQ(table_->StateOf(kBlock), PoolEntryState::kFree);
}

TEST_F(PoolTableTest, AMemoryClassBlockNeverBecomesOneThatMayGoToDisk) {
  table_->Hold(kBlock, 1);
  table_->Complete(kBlock, Facts(), false);
  std::vector<std::byte> before = memory_;
  // The head, the block's state and its record.
  std::vector<size_t> places(256);
  std::iota(places.begin(), places.end(), 0);
  for (size_t i = 0; i < 8; ++i) places.push_back(17 * 4096 + 8 * kBlock.value + i);
  const size_t record = memory_.size() - 128 * (kBlocks - kBlock.value);
  for (size_t i = 0; i < 128; ++i) places.push_back(record + i);
  for (const size_t at : places) {
    for (int bit = 0; bit < 8; ++bit) {
      memory_[at] ^= static_cast<std::byte>(1 << bit);
      if (Read()) ExpectTrueOrNothing(PoolTable(memory_));
      memory_[at] = before[at];
    }
  }
}

TEST_F(PoolTableTest, WhatDoesNotMatchIsRefused) {
  description_.boot_id.bytes.fill(2);
  EXPECT_EQ(Refusal(), "other_boot");
  description_.boot_id.bytes.fill(1);
  memory_[16] ^= std::byte{1};
  EXPECT_EQ(Refusal(), "version");
  memory_[16] ^= std::byte{1};
  memory_[0] ^= std::byte{1};
  EXPECT_EQ(Refusal(), "damaged");
  memory_[0] ^= std::byte{1};
  for (const size_t at : {20, 24, 32, 40, 48, 100, 150}) {
    memory_[at] ^= std::byte{1};
    EXPECT_EQ(Refusal(), "damaged") << at;
    memory_[at] ^= std::byte{1};
  }
  memory_.resize(memory_.size() - 4096);
  EXPECT_EQ(Refusal(), "damaged");
  memory_.resize(100);
  EXPECT_EQ(Refusal(), "damaged");
}

TEST_F(PoolTableTest, MemoryThatWasNotZeroedYetIsRefused) {
  std::vector<std::byte> fresh(PoolTable::BytesFor(kBlocks));
  PoolTable::Format(description_, fresh);
  const auto read = PoolTable::Read(fresh, description_.boot_id);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().reason, "not_ready");
}

TEST_F(PoolTableTest, AdoptionsThatDoNotEndAreCounted) {
  for (int deaths = 0; deaths < 5; ++deaths) {
    EXPECT_EQ(Refusal(), "");
    table_->BeginAdoption();
  }
  EXPECT_EQ(Refusal(), "adoption_unfinished");
  table_->EndAdoption();
  EXPECT_EQ(Refusal(), "");
}

TEST_F(PoolTableTest, APrivateBlockNamesItsHolder) {
  const auto first = table_->AddSession(Identity(70));
  const auto second = table_->AddSession(Identity(71));
  ASSERT_TRUE(first && second);
  table_->Hold(kBlock, 4);
  table_->SetHolder(kBlock, *first);
  table_->SetHolder(kBlock, *second);
  const PoolTable again(memory_);
  EXPECT_EQ(again.StateOf(kBlock), PoolEntryState::kPrivate);
  EXPECT_EQ(again.HolderOf(kBlock), *second);
  EXPECT_EQ(again.GenerationOf(kBlock), 4u);
  EXPECT_FALSE(again.Whole(kBlock));
  ASSERT_EQ(again.Sessions()->size(), 2u);
  EXPECT_EQ(again.Sessions()->at(*second).identity, Identity(71));
}

// A daemon that dies in the midst of a commit leaves the block to its session, which repeats it.
TEST_F(PoolTableTest, ABlockStaysItsHoldersUntilItsCommitIsRecorded) {
  const auto holder = table_->AddSession(Identity(70));
  ASSERT_TRUE(holder);
  PoolBlocks blocks(kBlocks);
  blocks.SetTable(&*table_);
  PoolBlockList list;
  const BlockIndex block = blocks.TakePrivate(SessionId(1), *holder, &list);
  blocks.Commit(block, EntryIndex(1), &list);
  const PoolTable again(memory_);
  ASSERT_EQ(again.StateOf(block), PoolEntryState::kPrivate);
  EXPECT_EQ(again.HolderOf(block), *holder);
  blocks.Record(block, Facts());
  ASSERT_EQ(again.StateOf(block), PoolEntryState::kReferenced);
  EXPECT_EQ(again.FactsOf(block), Facts());
}

TEST_F(PoolTableTest, ADamagedHolderIsNone) {
  table_->Hold(kBlock, 4);
  table_->SetHolder(kBlock, 3);
  const size_t record = memory_.size() - 128 * (kBlocks - kBlock.value);
  for (size_t at = record + 112; at < record + 120; ++at) {
    memory_[at] ^= std::byte{2};
    EXPECT_FALSE(table_->HolderOf(kBlock)) << at;
    memory_[at] ^= std::byte{2};
  }
  EXPECT_EQ(table_->HolderOf(kBlock), 3u);
}

TEST_F(PoolTableTest, NothingOfASessionThatIsGoneStaysInTheTable) {
  const std::vector<std::byte> before = memory_;
  const auto number = table_->AddSession(Identity(70));
  EXPECT_NE(memory_, before);
  table_->RemoveSession(*number);
  EXPECT_EQ(memory_, before);
}

TEST_F(PoolTableTest, MoreSessionsThanItHasRoomForAreUnknown) {
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < PoolTable::kMaxSessions; ++i) {
    const auto number = table_->AddSession(Identity(i + 1));
    ASSERT_TRUE(number);
    numbers.push_back(*number);
  }
  ASSERT_TRUE(table_->Sessions());
  EXPECT_EQ(table_->Sessions()->size(), PoolTable::kMaxSessions);
  table_->RemoveSession(numbers.back());
  PoolTable again(memory_);
  EXPECT_EQ(again.Sessions()->size(), PoolTable::kMaxSessions - 1);
  EXPECT_TRUE(again.AddSession(Identity(4000)));
  EXPECT_FALSE(again.AddSession(Identity(4001)));
  EXPECT_EQ(again.Sessions().error().reason, "clients_unknown");
}

}  // namespace
}  // namespace kvtier
