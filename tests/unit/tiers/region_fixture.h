// SPDX-License-Identifier: Apache-2.0
// A cache with memory of an engine, and the verbs of tests that store from it and load into it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {

// A transfer that may not have ended yet. Copies share it.
struct PendingTransfer {
  std::shared_ptr<std::optional<TransferEnd>> end = std::make_shared<std::optional<TransferEnd>>();

  [[nodiscard]] bool ended() const { return end->has_value(); }
  [[nodiscard]] const TransferEnd& operator*() const { return end->value(); }
  [[nodiscard]] const TransferEnd* operator->() const { return &end->value(); }
};

class CacheRegionsTest : public CacheTest {
 protected:
  static constexpr uint32_t kRegionBlocks = 16;

  // One that has blocks one after the other, unless pieces are given.
  PoolId OpenRegion(SessionId session = kAlice, std::vector<RegionPiece> pieces = {},
                    uint32_t device = 0, const std::string& tenant = "tenant") {
    if (pieces.empty()) pieces = {{0, kBlockBytes, kBlockBytes}};
    RegionMemory memory{.lent = {.bytes = kRegionBlocks * kBlockBytes},
                        .device = DeviceIndex(device),
                        .blocks = kRegionBlocks,
                        .block_tokens = kBlockTokens,
                        .pieces = std::move(pieces)};
    const auto region = cache_->OpenRegion(session, Identity(tenant, 1), std::move(memory));
    EXPECT_TRUE(region) << region.error().ToString();
    if (!machine_->device->lent().empty()) memory_ = machine_->device->lent().back();
    return *region;
  }
  [[nodiscard]] std::span<std::byte> RegionBytes(uint32_t block) const {
    return {memory_->data() + block * kBlockBytes, kBlockBytes};
  }
  PendingTransfer Begin(PoolId region, const std::vector<BlockIndex>& blocks,
                        const LayerOrder& order = {}) {
    PendingTransfer pending;
    const Status begun = cache_->BeginTransfer(
        region, TransferId(++last_transfer_), blocks,
        [end = pending.end](TransferEnd ended) { end->emplace(std::move(ended)); }, order);
    EXPECT_TRUE(begun) << begun.error().ToString();
    return pending;
  }
  // Stores the sequence's blocks, without the first `known` of them, from the region's blocks
  // `first` and on.
  PendingTransfer BeginStore(PoolId region, const Hashes& hashes, uint32_t first = 0,
                             uint32_t known = 0) {
    std::vector<BlockIndex> blocks;
    std::vector<StoreRequest> requests;
    for (uint32_t i = known; i < hashes.size(); ++i) {
      blocks.emplace_back(first + i);
      FillFromHash(hashes[i], RegionBytes(first + i));
      requests.push_back({.block = blocks.back(),
                          .hash = hashes[i],
                          .parent = i > 0 ? std::optional(hashes[i - 1]) : std::nullopt,
                          .tokens = kBlockTokens,
                          .depth = i});
    }
    const PendingTransfer pending = Begin(region, blocks);
    cache_->Store(region, requests);
    return pending;
  }
  PendingTransfer BeginLoad(PoolId region, const Hashes& hashes, uint32_t first = 0,
                            const LayerOrder& order = {}) {
    std::vector<BlockIndex> blocks;
    std::vector<LoadRequest> requests;
    for (uint32_t i = 0; i < hashes.size(); ++i) {
      blocks.emplace_back(first + i);
      requests.push_back({blocks.back(), hashes[i]});
    }
    const PendingTransfer pending = Begin(region, blocks, order);
    // As a daemon that works on it in several turns.
    const size_t half = requests.size() / 2;
    if (half > 0) cache_->Load(region, std::span(requests).first(half));
    cache_->Load(region, std::span(requests).subspan(half));
    return pending;
  }
  PendingTransfer StoreAll(PoolId region, const Hashes& hashes) {
    const PendingTransfer stored = BeginStore(region, hashes);
    Settle();
    EXPECT_TRUE(stored.ended());
    return stored;
  }

  FakeDevicePool* memory_ = nullptr;
  uint64_t last_transfer_ = 0;
};

}  // namespace kvtier
