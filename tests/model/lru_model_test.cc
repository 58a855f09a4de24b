// SPDX-License-Identifier: Apache-2.0
// The model by hand, and the cache against the model.

#include "tests/model/lru_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>
#include <set>
#include <string>

#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/fake_machine.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

std::vector<BlockHash> Sequence(uint64_t stream, uint64_t blocks) {
  std::vector<BlockHash> hashes;
  for (uint64_t i = 0; i < blocks; ++i) hashes.push_back(TestHash(stream, i));
  return hashes;
}

TEST(LruModelTest, FirstRequestMissesEverything) {
  LruModel model({.pool = 4, .host = 4, .disk = 4});
  EXPECT_EQ(model.Request(Sequence(1, 3)), (LruModelCounts{.asked = 3, .miss = 3}));
}

TEST(LruModelTest, SecondRequestHitsThePool) {
  LruModel model({.pool = 4, .host = 4, .disk = 4});
  model.Request(Sequence(1, 3));
  EXPECT_EQ(model.Request(Sequence(1, 4)), (LruModelCounts{.asked = 4, .pool = 3, .miss = 1}));
}

TEST(LruModelTest, EvictedBlocksAreHitInHostThenOnDisk) {
  LruModel model({.pool = 2, .host = 4, .disk = 8});
  model.Request(Sequence(1, 2));
  model.Request(Sequence(2, 2));
  EXPECT_EQ(model.Request(Sequence(1, 2)), (LruModelCounts{.asked = 2, .host = 2}));
  model.Request(Sequence(3, 2));
  model.Request(Sequence(4, 2));
  EXPECT_EQ(model.Request(Sequence(2, 2)), (LruModelCounts{.asked = 2, .disk = 2}));
}

TEST(LruModelTest, DeepestBlocksLeaveThePoolFirst) {
  LruModel model({.pool = 4, .host = 4, .disk = 8});
  model.Request(Sequence(1, 4));
  model.Request(Sequence(2, 1));
  EXPECT_EQ(model.Request(Sequence(1, 4)), (LruModelCounts{.asked = 4, .pool = 3, .host = 1}));
}

TEST(LruModelTest, DiskForgetsItsColdest) {
  LruModel model({.pool = 1, .host = 1, .disk = 1});
  for (uint64_t stream = 1; stream <= 4; ++stream) model.Request(Sequence(stream, 1));
  EXPECT_EQ(model.Request(Sequence(1, 1)).miss, 1u);
}

TEST(LruModelTest, WhatFollowsALostBlockIsDropped) {
  // The second block of the sequence stays young in host, the first stays in the pool until both
  // lower tiers have forgotten it.
  LruModel model({.pool = 2, .host = 2, .disk = 2});
  model.Request(Sequence(1, 2));
  for (uint64_t stream = 2; stream < 20; ++stream) {
    model.Request(Sequence(1, 1));
    model.Request(Sequence(stream, 1));
    model.DropUnusable();
    EXPECT_TRUE(model.Unusable().empty());
  }
}

TEST(LruModelTest, AnEndedSequenceLeavesBeforeOlderOnes) {
  LruModel model({.pool = 4, .host = 8, .disk = 8});
  model.Request(Sequence(1, 2));
  model.Request(Sequence(2, 2));
  model.EndUse(Sequence(2, 2), false);
  model.Request(Sequence(3, 2));
  EXPECT_EQ(model.Request(Sequence(1, 2)), (LruModelCounts{.asked = 2, .pool = 2}));
  EXPECT_EQ(model.Request(Sequence(2, 2)), (LruModelCounts{.asked = 2, .miss = 2}));
}

TEST(LruModelTest, AnAwaitedSequenceStaysUntilItsTimeHasPassed) {
  LruModel model({.pool = 4, .host = 8, .disk = 8});
  model.Request(Sequence(1, 2));
  model.Expect(Sequence(1, 2));
  for (uint64_t stream = 2; stream < 5; ++stream) model.Request(Sequence(stream, 2));
  EXPECT_TRUE(model.Where(TestHash(1, 0)).pool);
  model.ForgetReturns();
  for (uint64_t stream = 5; stream < 8; ++stream) model.Request(Sequence(stream, 2));
  EXPECT_FALSE(model.Where(TestHash(1, 0)).pool);
}

// --- the cache against the model ---

// One client that settles after each request, as `kvtierctl replay --clients 1` does.
class SettlingClient {
 public:
  // Copies, reads and writes end in an order drawn from `seed`: it must not matter.
  SettlingClient(const LruModelOptions& sizes, uint64_t seed) : machine_(Sizes(sizes), seed) {
    machine_.loop.Shuffle(seed);
    cache_.emplace(Options(sizes), machine_.Environment(), IndexSnapshot{});
    cache_->OpenSession(kSession, [](const LoadProgress&) {});
    NamespaceIdentity identity{.tenant = "tenant", .block_bytes = kBlockBytes};
    pool_ = *cache_->AttachPool(identity, 0);
  }
  ~SettlingClient() {
    cache_.reset();
    machine_.loop.DropAll();
  }

  LruModelCounts Request(const std::vector<BlockHash>& hashes) {
    const AcquireReply found = Acquire(hashes, 0);
    const auto missing = static_cast<uint32_t>(hashes.size() - found.hits.size());
    const AcquireReply allocated = Acquire({}, missing);
    std::vector<BlockHandle> held;
    for (const AcquiredBlock& hit : found.hits) held.push_back(hit.handle);
    for (uint32_t i = 0; i < missing; ++i) {
      const auto depth = static_cast<uint32_t>(held.size());
      CommitRequest commit{.block = allocated.new_blocks[i], .hash = hashes[depth], .tokens = 16};
      commit.depth = depth;
      if (depth > 0) commit.parent = hashes[depth - 1];
      EXPECT_TRUE(cache_->Commit(kSession, pool_.id, commit));
      held.push_back(allocated.new_blocks[i]);
    }
    std::ranges::reverse(held);
    EXPECT_TRUE(cache_->Release(kSession, pool_.id, held).empty());
    machine_.loop.RunAll();
    EXPECT_TRUE(cache_->Idle());
    return CountTiers(hashes.size(), found);
  }

  void Hint(const std::vector<BlockHash>& hashes, SequenceHint hint) {
    const int64_t returns_in_ms = hint == SequenceHint::kReturns ? kReturnsInMs : 0;
    EXPECT_TRUE(cache_->Hint(pool_.id, hashes, hint, returns_in_ms));
    machine_.loop.RunAll();
    EXPECT_TRUE(cache_->Idle());
  }
  // Until all that is expected back is overdue.
  void LetReturnsPass() { machine_.clock.Advance(kReturnsInMs + 1000); }

  // Blocks that cannot be reached leave with the next tick.
  void DropUnusable() {
    cache_->Tick();
    machine_.loop.RunAll();
    cache_->CheckInvariants();
    EXPECT_EQ(cache_->Gauges().unusable_blocks, (std::array<uint64_t, kTierCount>{}));
  }

  LruModel::Presence Where(const BlockHash& hash) const {
    const BlockPresence present = cache_->Lookup(pool_.id, std::vector{hash}).front();
    return {present.pool, present.host, present.disk};
  }

 private:
  static constexpr SessionId kSession{1};
  static constexpr int64_t kReturnsInMs = 10'000;
  static constexpr uint64_t kBlockBytes = 4 * kKiB;
  static constexpr uint64_t kSlotsPerSlab = 8;
  static constexpr uint64_t kSlabBytes = kSlotsPerSlab * 2 * kBlockBytes + 4 * kKiB;

  static MachineSizes Sizes(const LruModelOptions& sizes) {
    const auto host_slabs = static_cast<uint32_t>(sizes.host / kSlotsPerSlab);
    return {.slab_bytes = kSlabBytes,
            .host_slabs = host_slabs,
            .host_slabs_ready = host_slabs,
            .disk_slabs = static_cast<uint32_t>(sizes.disk / kSlotsPerSlab)};
  }
  static CacheOptions Options(const LruModelOptions& sizes) {
    CacheOptions options;
    options.pool_bytes = sizes.pool * kBlockBytes;
    options.pool_eviction = PoolEviction::kLru;
    options.slab_bytes = kSlabBytes;
    options.pool_clean_fraction = sizes.pool_clean_fraction;
    options.host_clean_fraction = sizes.host_clean_fraction;
    options.disk_free_fraction = sizes.disk_free_fraction;
    options.keep_unusable_ms = 0;
    // Only what leaves host is written.
    options.persist_after_ms = int64_t{1} << 40;
    return options;
  }
  AcquireReply Acquire(const std::vector<BlockHash>& hashes, uint32_t new_blocks) {
    std::optional<Result<AcquireReply>> reply;
    cache_->Acquire(
        {.session = kSession, .pool = pool_.id, .hashes = hashes, .new_blocks = new_blocks},
        [&](const Result<AcquireReply>& result) { reply = result; });
    machine_.loop.RunAll();
    EXPECT_TRUE(reply.has_value() && reply->has_value());
    return reply->value();
  }
  static LruModelCounts CountTiers(uint64_t asked, const AcquireReply& reply) {
    LruModelCounts counts{.asked = asked, .miss = asked - reply.hits.size()};
    for (const AcquiredBlock& hit : reply.hits) {
      counts.pool += hit.tier == Tier::kPool;
      counts.host += hit.tier == Tier::kHost;
      counts.disk += hit.tier == Tier::kDisk;
    }
    return counts;
  }

  FakeMachine machine_;
  std::optional<Cache> cache_;
  PoolInfo pool_;
};

struct ModelCase {
  const char* name;
  uint64_t streams;
  LruModelOptions sizes;
};

void PrintTo(const ModelCase& model_case, std::ostream* out) { *out << model_case.name; }

class CacheAgainstModelTest : public ::testing::TestWithParam<ModelCase> {};

// A sequence with a prefix that others share; popular ones come back.
std::vector<BlockHash> RandomRequest(SeededRandom& random, uint64_t streams, uint64_t longest) {
  const uint64_t stream = std::min(random.Below(streams), random.Below(streams));
  const uint64_t fork = TestHash(stream, 999).bytes[0] % (longest / 2);
  const uint64_t blocks = random.Between(1, longest);
  std::vector<BlockHash> hashes;
  for (uint64_t i = 0; i < blocks; ++i) {
    hashes.push_back(TestHash(i < fork ? stream / 4 + 10'000 : stream, i));
  }
  return hashes;
}

// The first block that cache and model do not agree on.
std::string Difference(const LruModel& model, const SettlingClient& client,
                       const std::set<BlockHash>& hashes) {
  for (const BlockHash& hash : hashes) {
    const LruModel::Presence a = client.Where(hash);
    const LruModel::Presence b = model.Where(hash);
    if (a == b) continue;
    return fmt::format("{}: cache pool {} host {} disk {}, model pool {} host {} disk {}",
                       hash.Hex().substr(0, 8), a.pool, a.host, a.disk, b.pool, b.host, b.disk);
  }
  return "";
}

TEST_P(CacheAgainstModelTest, EveryRequestIsServedAsTheModelSays) {
  const LruModelOptions& sizes = GetParam().sizes;
  LruModelCounts total;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    LruModel model(sizes);
    SettlingClient client(sizes, seed);
    SeededRandom random(seed);
    std::set<BlockHash> seen;
    for (int i = 0; i < 200; ++i) {
      const std::vector<BlockHash> hashes = RandomRequest(random, GetParam().streams, 8);
      seen.insert(hashes.begin(), hashes.end());
      const LruModelCounts expected = model.Request(hashes);
      ASSERT_EQ(client.Request(hashes), expected) << "seed " << seed << " request " << i;
      ASSERT_EQ(Difference(model, client, seen), "") << "seed " << seed << " request " << i;
      client.DropUnusable();
      model.DropUnusable();
      ASSERT_EQ(Difference(model, client, seen), "") << "seed " << seed << " request " << i;
    }
    total.pool += model.total().pool;
    total.host += model.total().host;
    total.disk += model.total().disk;
    total.miss += model.total().miss;
  }
  EXPECT_GT(total.pool, 100u);
  EXPECT_GT(total.host, 100u);
  EXPECT_GT(total.disk, 100u);
  EXPECT_GT(total.miss, 100u);
}

// A hint that a client might give about the sequence that it has just used. One sequence at a time
// is awaited: if nearly all of host were awaited, blocks on their way there would count, which the
// model leaves out.
void GiveRandomHint(SeededRandom& random, const std::vector<BlockHash>& hashes, LruModel* model,
                    SettlingClient* client) {
  switch (random.Below(6)) {
    case 0:
    case 1:
      client->Hint(hashes, SequenceHint::kClosed);
      return model->EndUse(hashes, /*once=*/false);
    case 2:
      client->Hint(hashes, SequenceHint::kOnce);
      return model->EndUse(hashes, /*once=*/true);
    case 3:
    case 4:
      client->LetReturnsPass();
      model->ForgetReturns();
      client->Hint(hashes, SequenceHint::kReturns);
      return model->Expect(hashes);
    default:
      return;
  }
}

TEST_P(CacheAgainstModelTest, HintsDoWhatTheModelSays) {
  const LruModelOptions& sizes = GetParam().sizes;
  LruModelCounts total;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    LruModel model(sizes);
    SettlingClient client(sizes, seed);
    SeededRandom random(seed);
    std::set<BlockHash> seen;
    for (int i = 0; i < 200; ++i) {
      const std::vector<BlockHash> hashes = RandomRequest(random, GetParam().streams, 8);
      seen.insert(hashes.begin(), hashes.end());
      const LruModelCounts expected = model.Request(hashes);
      ASSERT_EQ(client.Request(hashes), expected) << "seed " << seed << " request " << i;
      client.DropUnusable();
      model.DropUnusable();
      ASSERT_EQ(Difference(model, client, seen), "") << "seed " << seed << " request " << i;
      GiveRandomHint(random, hashes, &model, &client);
      ASSERT_EQ(Difference(model, client, seen), "") << "seed " << seed << " hint " << i;
      client.DropUnusable();
      model.DropUnusable();
    }
    total.pool += model.total().pool;
    total.host += model.total().host;
    total.miss += model.total().miss;
  }
  EXPECT_GT(total.pool, 100u);
  EXPECT_GT(total.host, 100u);
  EXPECT_GT(total.miss, 100u);
}

TEST_P(CacheAgainstModelTest, OrderOfCompletionsDoesNotMatter) {
  const LruModelOptions& sizes = GetParam().sizes;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SettlingClient one(sizes, seed), other(sizes, seed + 1000);
    SeededRandom random(seed);
    for (int i = 0; i < 200; ++i) {
      const std::vector<BlockHash> hashes = RandomRequest(random, GetParam().streams, 8);
      ASSERT_EQ(one.Request(hashes), other.Request(hashes)) << "seed " << seed << " request " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, CacheAgainstModelTest,
    ::testing::Values(ModelCase{"AmpleDisk", 40, {16, 48, 1600, 0.1, 0.1, 0.01}},
                      ModelCase{"DiskThatForgets", 40, {16, 32, 96, 0.1, 0.1, 0.05}},
                      ModelCase{"NothingCleanAhead", 40, {16, 32, 160, 0, 0, 0}},
                      ModelCase{"HalfClean", 60, {24, 64, 256, 0.5, 0.5, 0.1}},
                      ModelCase{"PoolAsLargeAsHost", 60, {64, 64, 320, 0.2, 0.2, 0.02}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvtier
