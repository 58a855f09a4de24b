// SPDX-License-Identifier: Apache-2.0
// The cache grows to a million blocks, and no event does the work of many.
//
// A container that doubles moves all its elements at once, to memory that it takes in one piece. So
// the largest piece that an event takes tells of every container that doubles, on any machine,
// however busy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/fake_machine.h"
#include "tests/unit/tiers/memory_taken.h"
#include "tiers/cache.h"

namespace kvtier {
namespace {

constexpr SessionId kSession{1};
constexpr uint64_t kBlockBytes = 64;
constexpr uint32_t kSequenceBlocks = 512;
constexpr uint32_t kSequences = 2400;
constexpr uint32_t kBlocks = kSequences * kSequenceBlocks;
// A vector that has doubled to hold one byte of each of so many blocks takes more. The sample of
// InfiniteCache, which is bounded, takes the most.
constexpr size_t kMostBytes = 3 * kMiB / 2;

class Listener final : public BlockEventSink {
 public:
  void BlockStored(const StoredBlock& /*block*/) override { ++stored; }
  void BlockRemoved(const BlockKey& /*key*/, Tier /*tier*/) override { ++removed; }
  uint64_t stored = 0;
  uint64_t removed = 0;
};

class CacheGrowth : public testing::Test {
 protected:
  CacheGrowth() {
    CacheOptions options;
    options.pool_bytes = kBlocks * kBlockBytes;
    options.slab_bytes = kMiB;
    options.pool_clean_fraction = 0;
    CacheEnvironment environment = machine_.Environment();
    environment.events = &listener_;
    cache_ = std::make_unique<Cache>(options, std::move(environment), IndexSnapshot());
    cache_->OpenSession(kSession, [](const LoadProgress&) {});
    const NamespaceIdentity identity{.tenant = "tenant", .model = {}, .block_bytes = kBlockBytes};
    const Result<PoolInfo> pool = cache_->AttachPool(identity, kBlocks * kBlockBytes);
    EXPECT_TRUE(pool);
    pool_ = pool->id;
    EXPECT_EQ(pool->blocks, kBlocks);
  }
  ~CacheGrowth() override {
    cache_.reset();
    machine_.loop.DropAll();
  }

  // Runs the work that the caller begins and all that follows from it, one event after another.
  template <typename Begin>
  void Events(Begin begin) {
    (void)TakeMemoryTaken();
    begin();
    do {
      worst_event_ = std::max(worst_event_, TakeMemoryTaken().largest);
    } while (machine_.loop.RunOne());
  }
  // A sequence of blocks that no client has had before, cached and no longer in use.
  void Put(uint64_t sequence) {
    std::vector<BlockHandle> blocks;
    Events([&] {
      cache_->Acquire({.session = kSession, .pool = pool_, .new_blocks = kSequenceBlocks},
                      [&blocks](Result<AcquireReply> reply) { blocks = reply->new_blocks; });
    });
    ASSERT_EQ(blocks.size(), kSequenceBlocks);
    std::optional<BlockHash> parent;
    Events([&] {
      for (uint32_t depth = 0; depth < kSequenceBlocks; ++depth) {
        const CommitRequest commit{.block = blocks[depth],
                                   .hash = TestHash(sequence, depth),
                                   .parent = parent,
                                   .tokens = 16,
                                   .depth = depth,
                                   .checksum = PayloadChecksum{}};
        ASSERT_TRUE(cache_->Commit(kSession, pool_, commit));
        parent = commit.hash;
      }
    });
    std::ranges::reverse(blocks);
    Events([&] { EXPECT_TRUE(cache_->Release(kSession, pool_, blocks).empty()); });
  }

  FakeMachine machine_{{.device_bytes = 2 * kBlocks * kBlockBytes,
                        .slab_bytes = kMiB,
                        .host_slabs = 1,
                        .host_slabs_ready = 1,
                        .disk_files = 0},
                       /*seed=*/1};
  Listener listener_;
  std::unique_ptr<Cache> cache_;
  PoolId pool_;
  size_t worst_event_ = 0;
};

TEST_F(CacheGrowth, NoEventMovesWhatAMillionBlocksHave) {
  for (uint32_t sequence = 0; sequence < kSequences; ++sequence) Put(sequence);
  EXPECT_EQ(listener_.stored, kBlocks);
  // And one block leaves for each that comes.
  for (uint32_t sequence = 0; sequence < 64; ++sequence) Put(kSequences + sequence);
  EXPECT_GE(listener_.removed, 64 * kSequenceBlocks);
  EXPECT_LE(worst_event_, kMostBytes);
}

}  // namespace
}  // namespace kvtier
