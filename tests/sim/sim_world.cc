// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/sim/sim_check.h"
#include "tiers/index/index_start.h"

namespace kvtier {

void SimView::BlockStored(const StoredBlock& block) {
  bool& stored = tiers_[block.key][static_cast<size_t>(block.tier)];
  SIM_CHECK(!stored, "a block was stored twice");
  stored = true;
}

void SimView::BlockRemoved(const BlockKey& key, Tier tier) {
  const auto known = tiers_.find(key);
  SIM_CHECK(known != tiers_.end() && known->second[static_cast<size_t>(tier)],
            "a block was removed that was not stored");
  known->second[static_cast<size_t>(tier)] = false;
  if (known->second != std::array<bool, kTierCount>{}) return;
  tiers_.erase(known);
  left_(key);
}

// The cache does not list blocks past their time, though they are there until the next tick.
void SimView::Check(const Cache& cache) const {
  size_t listed = 0;
  for (const BlockRecord& block : cache.Walk(0, UINT32_MAX, UINT32_MAX, {}).blocks) {
    if (!block.presence.anywhere()) continue;
    ++listed;
    const auto known = tiers_.find(block.key);
    SIM_CHECK(known != tiers_.end(), "a block was not told of");
    for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
      SIM_CHECK(known->second[static_cast<size_t>(tier)] == block.presence.in(tier),
                "a tier holds something else than was told");
    }
  }
  SIM_CHECK(listed <= tiers_.size(), "a block is listed twice");
  SIM_CHECK(tiers_.size() <= cache.Gauges().entries, "a block that is gone is told of");
}

SimWorld::SimWorld(const SimPlan& plan, SeededRandom random)
    : plan_(plan), options_(plan.options), machine_(plan.sizes, random.Next()) {
  machine_.loop.Shuffle(random.Next());
  SetFaults(true);
  StartCache({});
}

SimWorld::~SimWorld() {
  cache_.reset();
  machine_.loop.DropAll();
}

void SimWorld::StartCache(IndexSnapshot snapshot) {
  view_.Clear();
  CacheEnvironment environment = machine_.Environment();
  environment.events = &view_;
  machine_.owner.on_erasure_resumed = [this](const std::string& tenant, const EraseReport& report,
                                             const Status& status) {
    erasure_resumed_(tenant, report, status);
  };
  cache_ = std::make_unique<Cache>(options_, std::move(environment), std::move(snapshot));
  pools_.clear();
  for (const SimNamespace& name_space : plan_.namespaces) {
    for (uint32_t device = 0; device < plan_.sizes.devices; ++device) {
      Result<PoolInfo> pool =
          cache_->AttachPool(name_space.identity, name_space.pool_bytes, DeviceIndex(device));
      SIM_CHECK(pool.has_value(), pool.error().ToString());
      SIM_CHECK(pool->bytes == name_space.pool_bytes, "pool of another size");
      pools_.push_back(*pool);
    }
  }
}

std::span<std::byte> SimWorld::Bytes(SimPool in, BlockHandle block) {
  const PoolInfo& info = pool(in);
  SIM_CHECK(block.index.value < info.blocks, "handle outside the pool");
  FakeDevicePool* const memory = machine_.devices[in.device]->PoolByFd(info.fd);
  return {memory->data() + block.index.value * info.block_bytes, info.block_bytes};
}

void SimWorld::OnLeft(std::function<void(const BlockKey&)> left) {
  view_.OnLeft([this, left = std::move(left)](const BlockKey& key) {
    // Before the first pools are attached, at a start, nothing has been used in this life.
    for (uint32_t i = 0; i < pools_.size(); i += plan_.sizes.devices) {
      if (pools_[i].namespace_id != key.namespace_id) continue;
      left({NamespaceId(i / plan_.sizes.devices), key.hash});
    }
  });
}

Status SimWorld::Reconfigure(const CacheOptions& options) {
  KVT_RETURN_IF_ERROR(cache_->Reconfigure(options));
  options_ = options;
  return {};
}

void SimWorld::CrashAndRestart(Recovery recovery, size_t lost_batches, FakeMachine::HostMemory host,
                               const std::function<void()>& died) {
  // A process that is killed runs no destructors: what these write to the table is taken back.
  const std::span<std::byte> table = machine_.arena->table_bytes();
  const std::vector<std::byte> at_death(table.begin(), table.end());
  std::vector<std::vector<std::byte>> pools_at_death;
  for (const FakePoolKeeper::Kept& kept : machine_.pool_keeper.kept()) {
    pools_at_death.emplace_back(kept.table_bytes().begin(), kept.table_bytes().end());
  }
  cache_.reset();
  std::ranges::copy(at_death, table.begin());
  for (size_t i = 0; i < pools_at_death.size(); ++i) {
    std::ranges::copy(pools_at_death[i], machine_.pool_keeper.kept()[i].table_bytes().begin());
  }
  died();
  machine_.Crash(host);
  IndexSnapshot snapshot;
  if (machine_.index != nullptr) {
    machine_.index->LoseTail(lost_batches);
    if (recovery == Recovery::kFromHeaders) machine_.index->ReplaceWith(ReadHeaders());
    snapshot = machine_.Snapshot();
  }
  StartCache(std::move(snapshot));
}

IndexSnapshot SimWorld::ReadHeaders() {
  const DiskReadFunction read = [&](std::span<DiskRead> reads) {
    for (DiskRead& header : reads) {
      const auto from = machine_.files[header.file]->contents().subspan(header.offset);
      std::memcpy(header.into.data(), from.data(), header.into.size());
    }
  };
  return RebuildIndex(machine_.geometry(), read,
                      {.now_ms = machine_.clock.WallMs(),
                       .extended_ttl_ms = plan_.options.extended_ttl_ms,
                       .max_age_ms = plan_.options.max_age_ms,
                       .tenants = plan_.options.tenants})
      .snapshot;
}

void SimWorld::SetFaults(bool on) {
  machine_.SetDiskFaultRates(on ? plan_.disk_faults : DiskFaultRates{});
  for (const auto& device : machine_.devices) {
    device->FailCopiesAtRate(on ? plan_.copy_failure_rate : 0);
  }
  if (machine_.index) machine_.index->FailBatchesAtRate(on ? plan_.index_failure_rate : 0);
}

}  // namespace kvtier
