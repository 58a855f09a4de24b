// SPDX-License-Identifier: Apache-2.0
// Hosts, one after the other, that share a store.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/fake_cold_store.h"
#include "tests/unit/tiers/cache_fixture.h"
#include "tiers/cold/cold_object.h"

namespace kvtier {

class CacheColdTest : public CacheTest {
 protected:
  static constexpr int64_t kAfterMs = 10'000;

  CacheColdTest() {
    change_environment_ = [this](CacheEnvironment* environment, IndexSnapshot*) {
      store_.loop = &machine_->loop;
      environment->cold = &store_;
    };
  }
  [[nodiscard]] static CacheSetup ColdSetup() {
    CacheSetup setup;
    setup.options.cold_after_ms = kAfterMs;
    return setup;
  }
  // A host that has never had a block, with the same store.
  void StartAnotherHost(const CacheSetup& setup = ColdSetup()) {
    cache_.reset();
    if (machine_) machine_->loop.DropAll();
    progress_.clear();
    Start(setup);
  }
  // Has another host compute the blocks, use them and write them to the store.
  void WriteByAnotherHost(const Hashes& hashes) {
    StartAnotherHost();
    Put(hashes);
    Use(hashes);
    EvictFromPool();
    AdvanceAndTick(kAfterMs);
    EXPECT_THAT(store_.objects, ::testing::SizeIs(hashes.size()));
    StartAnotherHost();
  }
  void WriteByThisHost() {
    Start(ColdSetup());
    Put(hashes_);
    Use(hashes_);
    EvictFromPool();
    AdvanceAndTick(kAfterMs);
    ASSERT_THAT(store_.objects, ::testing::SizeIs(hashes_.size()));
  }
  // Sets `*told` when the eviction has ended.
  void Evict(const Hashes& hashes, Status* told) {
    const auto objects = std::make_shared<ObjectEviction>();
    for (const BlockHash& hash : hashes) {
      (void)cache_->Evict({pool_.namespace_id, hash}, std::nullopt, objects);
    }
    cache_->WhenEvictionsAreDurable([told](const Status& status) { *told = status; }, objects);
  }
  [[nodiscard]] static std::string Name(const BlockHash& hash) {
    return ColdName(Identity("tenant", 1), hash);
  }
  void ExpectBytes(const Hashes& hashes, const AcquireReply& reply) const {
    ASSERT_GE(hashes.size(), reply.hits.size());
    for (size_t i = 0; i < reply.hits.size(); ++i) {
      std::vector<std::byte> wanted(kBlockBytes);
      FillFromHash(hashes[i], wanted);
      EXPECT_TRUE(std::ranges::equal(wanted, Bytes(reply.hits[i].handle))) << i;
    }
  }
  [[nodiscard]] const ColdStats& stats() const { return cache_->stats().cold; }
  [[nodiscard]] uint64_t Lookups(ColdAnswer answer) const {
    return stats().lookups[static_cast<size_t>(answer)];
  }
  [[nodiscard]] uint64_t FailedReads(MissReason reason) const {
    return stats().failed_reads[static_cast<size_t>(reason)];
  }
  // The blocks of an acquire whose load failed are released, and the cache keeps no trace of it.
  void GiveBack(const AcquireReply& reply) {
    Release(kAlice, HandlesOf(reply));
    Settle();
    for (const auto& hash : Sequence(1, 4)) EXPECT_FALSE(Presence(hash).anywhere());
  }

  const Hashes hashes_ = Sequence(1, 4);
  FakeColdStore store_;
};

}  // namespace kvtier
