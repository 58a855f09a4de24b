// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/harness/geometries.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <utility>

#include "base/units.h"
#include "kvtier/kvtier.hpp"
#include "tests/integration/harness/plain_client.h"
#include "tools/support/admin.h"
#include "tools/support/private_daemon.h"

namespace kvtier {
namespace {

constexpr uint32_t kBlocks = 6;  // all that the pool holds
constexpr int64_t kAdminSilenceMs = 60'000;

// Each layer's slice of each block is filled with numbers of its own.
std::vector<std::byte> BytesOf(const KvGeometry& geometry, uint32_t block) {
  std::vector<std::byte> bytes(geometry.block_bytes);
  const uint64_t slice = geometry.block_bytes / geometry.layers;
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    const uint64_t seed = (block * geometry.layers + i / slice + 1) * 0x9E3779B97F4A7C15u + i;
    bytes[i] = static_cast<std::byte>((seed ^ seed >> 29) * 0xBF58476D1CE4E5B9u >> 56);
  }
  return bytes;
}

std::vector<kvt_hash> HashesOf(uint8_t sequence) {
  std::vector<kvt_hash> hashes(kBlocks);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    std::memset(hashes[i].bytes, 0x11 * (sequence + 1), sizeof(hashes[i].bytes));
    hashes[i].bytes[0] = static_cast<uint8_t>(i);
  }
  return hashes;
}

class Journey {
 public:
  Journey(const KvGeometry& geometry, const std::string& kvtierd, const std::string& device,
          const std::string& directory)
      : geometry_(geometry), hashes_(HashesOf(0)) {
    const uint64_t pool_bytes = kBlocks * geometry.block_bytes;
    PrivateDaemonOptions options;
    options.program = kvtierd;
    options.directory = directory;
    // A GPU's memory comes in whole 2 MiB.
    options.settings = {"pool.device=" + device,
                        fmt::format("pool.bytes={}B", (pool_bytes + 2 * kMiB) / kMiB * kMiB),
                        "host.bytes=64MiB",
                        "disk.bytes=128MiB",
                        "cache.slab_bytes=8MiB",
                        "disk.free_floor_bytes=0B",
                        "retention.persist_after=0s",
                        "cache.max_wait_ms=30000"};
    auto daemon = PrivateDaemon::Start(std::move(options));
    EXPECT_TRUE(daemon) << daemon.error().ToString();
    if (daemon) daemon_.emplace(std::move(*daemon));
  }

  [[nodiscard]] bool Attach() {
    if (!daemon_) return false;
    pool_.reset();
    connection_.emplace(ConnectTo(daemon_->socket()));
    kvt_model_record record;
    kvt_model_record_init(&record);
    record.name = geometry_.name;
    record.groups[0].layers = geometry_.layers;
    record.groups[0].kv_heads = geometry_.kv_heads;
    record.groups[0].k_head_dim = geometry_.k_head_dim;
    record.groups[0].v_head_dim = geometry_.v_head_dim;
    record.groups[0].dtype = geometry_.dtype;
    const auto model = connection_->RegisterModel(record);
    EXPECT_TRUE(model) << model.error().ToString();
    if (!model) return false;
    EXPECT_EQ(model->block_bytes, geometry_.block_bytes);
    auto pool = connection_->Attach(model->model, kBlocks * geometry_.block_bytes);
    EXPECT_TRUE(pool) << pool.error().ToString();
    if (pool) pool_.emplace(*std::move(pool));
    return pool_.has_value();
  }

  // Writes the sequence's blocks and lets go of them; in a pool that is full of others, they leave.
  void Store(const std::vector<kvt_hash>& hashes) {
    auto acquired = pool_->Acquire({}, {}, kBlocks);
    ASSERT_TRUE(acquired) << acquired.error().ToString();
    std::vector<kvt_commit_entry> entries(kBlocks);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      ASSERT_TRUE(pool_->Write(acquired->new_blocks[i], BytesOf(geometry_, i)));
      entries[i].block = acquired->new_blocks[i];
      entries[i].hash = hashes[i];
      entries[i].tokens = 16;
      entries[i].depth = i;
      entries[i].retention = KVT_RETENTION_EXTENDED;
    }
    const auto results = pool_->CommitAndWait(entries);
    ASSERT_TRUE(results) << results.error().ToString();
    for (const kvt_status status : *results) EXPECT_EQ(status, KVT_OK);
  }

  void ExpectFrom(kvt_tier tier, kvt_load_order order = KVT_LOAD_BLOCKS) {
    auto acquired = pool_->Acquire(hashes_, {}, 0, order);
    ASSERT_TRUE(acquired) << acquired.error().ToString();
    ASSERT_EQ(acquired->hits.size(), kBlocks);
    for (const auto& source : acquired->sources) EXPECT_EQ(source.tier, tier);
    if (order == KVT_LOAD_LAYERS) ExpectLayersInTurn(&*acquired);
    const auto waited = pool_->Wait(&*acquired, kBlocks);
    ASSERT_TRUE(waited) << waited.error().ToString();
    ASSERT_EQ(waited->ready, kBlocks);
    std::vector<std::byte> seen(geometry_.block_bytes);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      ASSERT_TRUE(pool_->Read(acquired->hits[i], seen));
      EXPECT_TRUE(seen == BytesOf(geometry_, i)) << "block " << i;
    }
  }

  void Restart() {
    EXPECT_TRUE(CallAdmin(daemon_->admin_socket(), R"({"op":"drain"})", kAdminSilenceMs));
    daemon_->Kill();
    const Status restarted = daemon_->Restart();
    ASSERT_TRUE(restarted) << restarted.error().ToString();
    ASSERT_TRUE(Attach());
  }

 private:
  void ExpectLayersInTurn(kvt::Acquired* acquired) {
    const uint64_t slice = geometry_.block_bytes / geometry_.layers;
    std::vector<std::byte> seen(slice);
    for (const uint32_t layer : {0u, geometry_.layers / 2, geometry_.layers - 1}) {
      ASSERT_TRUE(pool_->WaitLayers(acquired, layer + 1));
      for (uint32_t i = 0; i < kBlocks; ++i) {
        ASSERT_TRUE(pool_->Read(acquired->hits[i], seen, layer * slice));
        EXPECT_EQ(std::memcmp(seen.data(), BytesOf(geometry_, i).data() + layer * slice, slice), 0)
            << "layer " << layer << " of block " << i;
      }
    }
  }

  const KvGeometry geometry_;
  const std::vector<kvt_hash> hashes_;
  std::optional<PrivateDaemon> daemon_;
  std::optional<kvt::Connection> connection_;
  std::optional<kvt::Pool> pool_;
};

}  // namespace

void ExpectServedFromAllTiers(const KvGeometry& geometry, const std::string& kvtierd,
                              const std::string& device, const std::string& directory) {
  Journey journey(geometry, kvtierd, device, directory);
  ASSERT_TRUE(journey.Attach());
  journey.Store(HashesOf(0));
  journey.ExpectFrom(KVT_TIER_POOL);
  // Others take the whole pool, twice.
  journey.Store(HashesOf(1));
  journey.ExpectFrom(KVT_TIER_HOST);
  journey.Store(HashesOf(2));
  journey.ExpectFrom(KVT_TIER_HOST, KVT_LOAD_LAYERS);
  journey.Restart();
  journey.ExpectFrom(KVT_TIER_DISK);
  journey.ExpectFrom(KVT_TIER_POOL);
}

}  // namespace kvtier
