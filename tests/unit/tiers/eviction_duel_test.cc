// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/eviction_duel.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/model/access_patterns.h"
#include "tests/model/offline_replay.h"

namespace kvtier {
namespace {

// Evicts blocks of odd names first.
class EvenStayPolicy final : public EvictionPolicy {
 public:
  void Insert(EntryIndex entry, const BlockFacts& facts) override {
    lru_->Insert(entry, OddLeave(facts));
  }
  void InsertCold(EntryIndex entry, const BlockFacts& facts) override {
    lru_->InsertCold(entry, OddLeave(facts));
  }
  void Touch(EntryIndex entry, const BlockFacts& facts) override {
    lru_->Touch(entry, OddLeave(facts));
  }
  void Remove(EntryIndex entry) override { lru_->Remove(entry); }
  bool Contains(EntryIndex entry) const override { return lru_->Contains(entry); }
  EntryIndex Victim() const override { return lru_->Victim(); }
  size_t size() const override { return lru_->size(); }
  size_t memory_bytes() const override { return lru_->memory_bytes(); }

 private:
  static BlockFacts OddLeave(BlockFacts facts) {
    facts.leaves_first |= facts.hash % 2 != 0;
    return facts;
  }
  const std::unique_ptr<EvictionPolicy> lru_ = MakeLruPolicy();
};

class EvictionDuelTest : public ::testing::Test {
 protected:
  void Start(EvictionDuel::Capacity capacity) {
    EvictionDuel::Orders orders = {MakeLruPolicy(), std::make_unique<EvenStayPolicy>()};
    duel_ = std::make_unique<EvictionDuel>(std::move(orders), capacity);
  }
  // A sequence of one block, released.
  void Use(uint64_t hash) {
    duel_->NoteRelease(EntryIndex(static_cast<uint32_t>(hash)), {.hash = hash});
  }
  // A sequence of block 1 and the even ones from 2 on, released; or as many sequences of one block.
  void UseOddHead(bool one_sequence) {
    for (uint32_t entry = 16; entry > 0; entry -= entry > 2 ? 2 : 1) {
      const EntryIndex before(entry > 2 ? entry - 2 : entry - 1);
      duel_->NoteRelease(EntryIndex(entry),
                         {.parent = one_sequence && entry > 1 ? before : kNoEntry, .hash = entry});
    }
  }
  // Asks for four blocks in turn, each followed by two of the other kind that never come back.
  void AskForFour(uint64_t kind, int rounds) {
    for (int i = 0; i < rounds; ++i) {
      Use(kind + 2 * static_cast<uint64_t>(i % 4));
      for (int k = 0; k < 2; ++k) Use((once_ += 2) + 1 - kind);
    }
  }

  std::unique_ptr<EvictionDuel> duel_;
  uint64_t once_ = 1000;
};

TEST_F(EvictionDuelTest, SecondOrderLeadsOnceItHasServedMoreForSure) {
  Start({.pool_blocks = 6});
  AskForFour(0, 8);
  EXPECT_FALSE(duel_->second_leads()) << "a few hits may be chance";
  AskForFour(0, 20);
  EXPECT_TRUE(duel_->second_leads());
}

TEST_F(EvictionDuelTest, SecondOrderNeverLeadsWhereBothServeAsMuch) {
  Start({.pool_blocks = 20});
  for (int i = 0; i < 10'000; ++i) Use(static_cast<uint64_t>(i % 16));
  EXPECT_FALSE(duel_->second_leads());
}

TEST_F(EvictionDuelTest, FirstOrderIsBackWhenTheLeadIsGone) {
  Start({.pool_blocks = 6});
  AskForFour(0, 60);
  ASSERT_TRUE(duel_->second_leads());
  // LRU keeps these, and the other order evicts them at once.
  AskForFour(1, 60);
  for (int i = 0; i < 200; ++i) Use(static_cast<uint64_t>(1 + 2 * (i % 4)));
  EXPECT_FALSE(duel_->second_leads());
}

TEST_F(EvictionDuelTest, BlockInHostIsWorthLessThanOneInThePool) {
  Start({.pool_blocks = 6, .host_blocks = 100});
  AskForFour(0, 60);
  EXPECT_TRUE(duel_->second_leads());
}

// The second order keeps all even blocks, but not the head; the first one the head and some.
TEST_F(EvictionDuelTest, BlocksBehindOneThatIsMissingAreOfNoUse) {
  for (const bool one_sequence : {false, true}) {
    Start({.pool_blocks = 12});
    for (int i = 0; i < 100; ++i) {
      UseOddHead(one_sequence);
      for (int k = 0; k < 6; ++k) Use((once_ += 2) + 1);
    }
    EXPECT_EQ(duel_->second_leads(), !one_sequence);
  }
}

TEST_F(EvictionDuelTest, LargePoolTakesNoMoreMemoryThanASmallOne) {
  Start({.pool_blocks = 1'000'000, .host_blocks = 9'000'000});
  for (uint64_t block = 0; block < 12'000'000; block += 2) Use(block * 0x9E37'79B9);
  constexpr size_t kMostBytes = 512 * 1024;
  EXPECT_LE(duel_->memory_bytes(), kMostBytes);
}

// A client chooses the hashes of its blocks.
TEST_F(EvictionDuelTest, SequenceOfBlocksThatShareOneNameDoesNoHarm) {
  Start({.pool_blocks = 4, .host_blocks = 4});
  for (int i = 0; i < 10; ++i) {
    for (uint32_t entry = 3000; entry > 0; --entry) {
      duel_->NoteRelease(EntryIndex(entry), {.parent = EntryIndex(entry - 1), .hash = entry % 3});
    }
    duel_->NoteHint({.hash = 1, .leaves_first = true});
  }
  EXPECT_FALSE(duel_->second_leads());
}

// --- against LRU, on whole traces ---

class DuelPatternTest : public ::testing::TestWithParam<std::string_view> {};

TEST_P(DuelPatternTest, SavesAsMuchAsLruAndDecidesTheSameEachTime) {
  Trace trace = MakeAccessPattern(GetParam(), 1);
  trace.requests.resize(trace.requests.size() / 4);
  OfflineSizes sizes{.pool = 1000, .host = 4000, .eviction = PoolEviction::kLru};
  const OfflineReport lru = ReplayOffline(trace, sizes);
  sizes.eviction = PoolEviction::kCls;
  const OfflineReport cls = ReplayOffline(trace, sizes);
  EXPECT_GE(cls.NetPercent(), 0.99 * lru.NetPercent());
  EXPECT_EQ(ReplayOffline(trace, sizes).hit_tokens, cls.hit_tokens);
}

INSTANTIATE_TEST_SUITE_P(Patterns, DuelPatternTest, ::testing::ValuesIn(kAccessPatterns),
                         [](const auto& info) { return std::string(info.param); });

TEST(DuelPolicyTest, ServesMoreFromThePoolThanLruWherePromptsAskedOncePassThrough) {
  const Trace trace = MakeAccessPattern("scan", 1);
  OfflineSizes sizes{.pool = 2000, .host = 2000, .eviction = PoolEviction::kLru};
  const OfflineReport lru = ReplayOffline(trace, sizes);
  sizes.eviction = PoolEviction::kCls;
  EXPECT_GE(ReplayOffline(trace, sizes).PoolHitPercent(), 1.1 * lru.PoolHitPercent());
}

}  // namespace
}  // namespace kvtier
