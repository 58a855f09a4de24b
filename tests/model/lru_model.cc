// SPDX-License-Identifier: Apache-2.0
#include "tests/model/lru_model.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include "base/result.h"

namespace kvtier {
namespace {

uint64_t Share(double fraction, uint64_t blocks) {
  return static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(blocks)));
}

}  // namespace

LruModel::LruModel(const LruModelOptions& options)
    : pool_clean_(Share(options.pool_clean_fraction, options.pool)),
      host_clean_(Share(options.host_clean_fraction, options.host)),
      disk_free_(Share(options.disk_free_fraction, options.disk)),
      pool_(options.pool),
      host_(options.host),
      disk_(options.disk) {}

LruModelCounts LruModel::Request(std::span<const BlockHash> hashes) {
  for (size_t i = 1; i < hashes.size(); ++i) parents_[hashes[i]] = hashes[i - 1];
  const LruModelCounts counts = Acquire(hashes);
  Commit(hashes, counts.asked - counts.miss);
  Release(hashes);
  total_.asked += counts.asked;
  total_.pool += counts.pool;
  total_.host += counts.host;
  total_.disk += counts.disk;
  total_.miss += counts.miss;
  return counts;
}

std::vector<BlockHash> LruModel::Unusable() const {
  std::vector<BlockHash> unusable;
  for (const auto& [hash, parent] : parents_) {
    if (Where(hash) == Presence{}) continue;
    for (auto before = parents_.find(hash); before != parents_.end();
         before = parents_.find(before->second)) {
      if (Where(before->second) != Presence{}) continue;
      unusable.push_back(hash);
      break;
    }
  }
  return unusable;
}

void LruModel::DropUnusable() {
  for (const BlockHash& hash : Unusable()) {
    pool_.Remove(hash);
    host_.Remove(hash);
    disk_.Remove(hash);
  }
}

uint64_t LruModel::PrefixLength(std::span<const BlockHash> hashes) const {
  const auto missing = std::ranges::find_if(hashes, [&](const BlockHash& hash) {
    return !pool_.Contains(hash) && !host_.Contains(hash) && !disk_.Contains(hash);
  });
  return static_cast<uint64_t>(missing - hashes.begin());
}

LruModelCounts LruModel::Acquire(std::span<const BlockHash> hashes) {
  std::vector<BlockHash> resident, to_load;
  for (const BlockHash& hash : hashes.first(PrefixLength(hashes))) {
    (pool_.Contains(hash) ? resident : to_load).push_back(hash);
  }
  for (const BlockHash& hash : resident) Hold(hash);
  for (const BlockHash& hash : std::views::reverse(to_load)) {
    TouchDisk(hash);
    if (host_.Contains(hash)) host_.Place(hash, ++now_);
  }
  MakeRoomInPool(to_load.size());
  // Blocks that sank to make room may have pushed out blocks to be loaded.
  const auto gone = std::ranges::find_if(hashes, [&](const BlockHash& hash) {
    return !held_.contains(hash) && !host_.Contains(hash) && !disk_.Contains(hash);
  });
  const auto hits = hashes.first(static_cast<size_t>(gone - hashes.begin()));
  LruModelCounts counts{.asked = hashes.size(), .miss = hashes.size() - hits.size()};
  std::vector<BlockHash> loading;
  for (const BlockHash& hash : hits) {
    if (held_.contains(hash)) {
      ++counts.pool;
      continue;
    }
    Hold(hash);
    (host_.Contains(hash) ? counts.host : counts.disk) += 1;
    loading.push_back(hash);
  }
  loading_.insert(loading.begin(), loading.end());
  std::vector<Arrival> to_read;
  for (const BlockHash& hash : std::views::reverse(hits)) {
    Use(hash);
    TouchDisk(hash);
    if (loading_.contains(hash)) ArriveInHost(hash, &to_read);
  }
  loading_.clear();
  // They are read in the order of the prefix.
  std::ranges::reverse(to_read);
  PreparePool(pool_clean_, Need::kLater);
  SettleHost();
  FillHost(to_read);
  SettlePool();
  return counts;
}

void LruModel::Hold(const BlockHash& hash) {
  pool_.Remove(hash);
  held_.insert(hash);
}

void LruModel::Commit(std::span<const BlockHash> hashes, uint64_t hits) {
  MakeRoomInPool(hashes.size() - hits);
  // A later block of the sequence may be in the pool although an earlier one is not: the private
  // block is given back and the one in the pool is left alone.
  private_ = hashes.size() - hits;
  SettlePool();
  for (size_t i = hits; i < hashes.size(); ++i) {
    const BlockHash& hash = hashes[i];
    if (Where(hash) == Presence{}) {
      // A hint about an earlier copy of it was forgotten with that.
      ended_.erase(hash);
      if (i > 0) TakeBackEnd(hashes[i - 1]);
    } else {
      TakeBackEnd(hash);
    }
    awaited_.erase(hash);
    not_written_.erase(hash);
    TouchDisk(hash);
    if (!pool_.Contains(hash)) held_.insert(hash);
  }
  private_ = 0;
}

// --- what clients say ---

bool LruModel::FollowedByOthers(const BlockHash& hash) const {
  size_t followers = 0;
  bool ended = true;
  for (const auto& [child, parent] : parents_) {
    if (parent != hash || Where(child) == Presence{}) continue;
    ++followers;
    ended &= ended_.contains(child);
  }
  return followers > 1 || !ended;
}

void LruModel::EndUse(std::span<const BlockHash> hashes, bool once) {
  for (const BlockHash& hash : std::views::reverse(hashes)) {
    if (Where(hash) == Presence{} || FollowedByOthers(hash)) continue;
    ended_[hash] |= once;
    awaited_.erase(hash);
    if (pool_.Contains(hash)) pool_.PlaceToLeaveFirst(hash);
    if (host_.Contains(hash)) host_.PlaceToLeaveFirst(hash);
  }
  SettlePool();
}

void LruModel::Expect(std::span<const BlockHash> hashes) {
  for (const BlockHash& hash : std::views::reverse(hashes)) {
    if (Where(hash) == Presence{}) continue;
    TakeBackEnd(hash);
    awaited_.insert(hash);
    if (pool_.Contains(hash)) pool_.Place(hash, ++now_);
    if (host_.Contains(hash)) host_.Place(hash, ++now_);
  }
  SettlePool();
}

void LruModel::TakeBackEnd(const BlockHash& hash) {
  for (BlockHash block = hash; ended_.erase(block) > 0;) {
    if (pool_.Contains(block)) pool_.Place(block, ++now_);
    if (host_.Contains(block) && !loading_.contains(block)) host_.Place(block, ++now_);
    const auto parent = parents_.find(block);
    if (parent == parents_.end()) return;
    block = parent->second;
  }
}

void LruModel::Use(const BlockHash& hash) {
  const auto ended = ended_.find(hash);
  if (ended != ended_.end() && !ended->second) TakeBackEnd(hash);
  awaited_.erase(hash);
  not_written_.erase(hash);
}

BlockHash LruModel::PrepareNext(LruTier* tier) {
  constexpr int kMostSpared = 64;
  for (int spared = 0; spared < kMostSpared; ++spared) {
    const BlockHash next = tier->NextToPrepare();
    if (!awaited_.contains(next)) break;
    tier->Place(next, ++now_);
  }
  return tier->PrepareNext();
}

void LruModel::Release(std::span<const BlockHash> hashes) {
  for (const BlockHash& hash : std::views::reverse(hashes)) {
    if (held_.erase(hash) == 0) continue;
    if (ended_.contains(hash)) {
      pool_.PlaceToLeaveFirst(hash);
    } else {
      pool_.Place(hash, ++now_);
    }
    const bool spare = disk_.Contains(hash) || ended_.contains(hash);
    if (host_.Contains(hash) && spare) host_.PlaceToLeaveFirst(hash);
    TouchDisk(hash);
  }
  SettlePool();
}

void LruModel::MakeRoomInPool(uint64_t blocks) {
  if (FreePoolBlocks() >= blocks) return;
  const uint64_t leaving = blocks - FreePoolBlocks();
  KVT_CHECK(leaving <= pool_.size());
  PreparePool(blocks, Need::kNow);
  // A call that has to wait for copies lets the pool prepare more meanwhile.
  if (!sinking_.empty()) SettlePool();
  for (uint64_t i = 0; i < leaving; ++i) pool_.Remove(BlockHash(pool_.coldest()));
}

// `target`: free and prepared blocks together.
void LruModel::PreparePool(uint64_t target, Need need) {
  while (FreePoolBlocks() + pool_.prepared() < target && pool_.prepared() < pool_.size()) {
    const BlockHash hash = PrepareNext(&pool_);
    if (need == Need::kNow && !host_.Contains(hash) && disk_.Contains(hash)) continue;
    ArriveInHost(hash, &sinking_);
  }
}

void LruModel::ArriveInHost(const BlockHash& hash, std::vector<Arrival>* arrivals) {
  ++now_;
  const bool used = loading_.contains(hash);
  if (!used && ended_.contains(hash)) {
    if (host_.Contains(hash)) host_.PlaceToLeaveFirst(hash);
  } else if (host_.Contains(hash)) {
    host_.Place(hash, now_);
  } else {
    arrivals->push_back({hash, now_});
  }
}

void LruModel::SettlePool() {
  PreparePool(pool_clean_, Need::kLater);
  SettleHost();
  FillHost(std::exchange(sinking_, {}));
}

void LruModel::FillHost(const std::vector<Arrival>& arrivals) {
  for (const Arrival& arrival : arrivals) {
    if (host_.size() == host_.capacity()) MakeRoomInHost();
    host_.Place(arrival.hash, arrival.time);
  }
  SettleHost();
}

void LruModel::MakeRoomInHost() {
  if (host_.prepared() == 0) PrepareHost(1);
  const BlockHash leaving = host_.coldest();
  if (!disk_.Contains(leaving) && IsToBeWritten(leaving)) {
    WriteToDisk(leaving, ++now_);
    SettleHost();
  }
  host_.Remove(leaving);
}

void LruModel::PrepareHost(uint64_t target) {
  std::vector<Arrival> to_write;
  while (host_.capacity() - host_.size() + host_.prepared() < target &&
         host_.prepared() < host_.size()) {
    const BlockHash hash = PrepareNext(&host_);
    ++now_;
    if (disk_.Contains(hash)) {
      disk_.Place(hash, now_);
    } else if (IsToBeWritten(hash)) {
      to_write.push_back({hash, now_});
    }
  }
  for (const Arrival& arrival : to_write) WriteToDisk(arrival.hash, arrival.time);
}

void LruModel::SettleHost() { PrepareHost(host_clean_); }

void LruModel::WriteToDisk(const BlockHash& hash, uint64_t time) {
  const auto forget_coldest = [this] {
    const BlockHash coldest = disk_.coldest();
    disk_.Remove(coldest);
    not_written_.insert(coldest);
  };
  if (disk_.size() == disk_.capacity()) forget_coldest();
  disk_.Place(hash, time);
  while (disk_.capacity() - disk_.size() < disk_free_) forget_coldest();
}

}  // namespace kvtier
