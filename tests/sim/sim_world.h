// SPDX-License-Identifier: Apache-2.0
// The machine, the cache on it and the pools as clients see them; dies and comes back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/fakes/fake_machine.h"
#include "tests/sim/sim_plan.h"
#include "tiers/cache.h"

namespace kvtier {

// The tiers as the cache has announced them.
class SimView final : public BlockEventSink {
 public:
  void BlockStored(const StoredBlock& block) override;
  void BlockRemoved(const BlockKey& key, Tier tier) override;
  // Checks that it equals the cache's own report. REQUIRES: no event is pending.
  void Check(const Cache& cache) const;
  void Clear() { tiers_.clear(); }
  // Calls `left` when no tier has the block any more.
  void OnLeft(std::function<void(const BlockKey&)> left) { left_ = std::move(left); }

 private:
  std::function<void(const BlockKey&)> left_ = [](const BlockKey&) {};
  std::unordered_map<BlockKey, std::array<bool, kTierCount>> tiers_;
};

class SimWorld {
 public:
  explicit SimWorld(const SimPlan& plan, SeededRandom random);
  ~SimWorld();

  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] const Cache& cache() const { return *cache_; }
  [[nodiscard]] const SimView& view() const { return view_; }
  [[nodiscard]] FakeMachine& machine() { return machine_; }
  [[nodiscard]] const PoolInfo& pool(SimPool pool) const {
    return pools_[pool.name_space * plan_.sizes.devices + pool.device];
  }

  // The options in effect: those of the plan until they are changed; kept over a crash.
  [[nodiscard]] const CacheOptions& options() const { return options_; }
  [[nodiscard]] Status Reconfigure(const CacheOptions& options);

  // A block's memory as the client maps it.
  [[nodiscard]] std::span<std::byte> Bytes(SimPool in, BlockHandle block);

  enum class Recovery : uint8_t { kFromIndex, kFromHeaders };
  // Power fails; then a new process starts. Forgets up to `lost_batches` of the index's
  // acknowledged batches. With kKept host memory is there again all the same, as `died` leaves it,
  // which is called between the two processes.
  void CrashAndRestart(Recovery recovery, size_t lost_batches, FakeMachine::HostMemory host,
                       const std::function<void()>& died);

  // Called for erasures that a later daemon finishes; see CacheEnvironment.
  using ErasureResumed = std::function<void(const std::string&, const EraseReport&, const Status&)>;
  void OnErasureResumed(ErasureResumed resumed) { erasure_resumed_ = std::move(resumed); }
  // The block, by the number of its space here, has left its last tier.
  void OnLeft(std::function<void(const BlockKey&)> left);

  // Turns every fault off, or on again as planned.
  void SetFaults(bool on);

 private:
  void StartCache(IndexSnapshot snapshot);
  [[nodiscard]] IndexSnapshot ReadHeaders();

  const SimPlan& plan_;
  CacheOptions options_;
  FakeMachine machine_;
  SimView view_;
  ErasureResumed erasure_resumed_;
  std::unique_ptr<Cache> cache_;
  std::vector<PoolInfo> pools_;  // those of one space after the other
};

}  // namespace kvtier
