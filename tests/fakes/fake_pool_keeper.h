// SPDX-License-Identifier: Apache-2.0
// Keeps the pools of fake devices over the deaths of caches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/aligned_bytes.h"
#include "tests/fakes/fake_device.h"
#include "tiers/state/pool_keeper.h"

namespace kvtier {

class FakePoolKeeper final : public PoolKeeper {
 public:
  // `devices` are borrowed, by DeviceIndex.
  explicit FakePoolKeeper(const std::vector<std::unique_ptr<FakeDevice>>* devices)
      : devices_(*devices) {}

  struct Kept {
    DeviceIndex device;
    PoolDescription description;
    std::shared_ptr<AlignedBytes> memory;
    int fd = -1;
    std::unique_ptr<AlignedBytes> table_memory;
    std::unique_ptr<PoolTable> table;

    [[nodiscard]] std::span<std::byte> table_bytes() const {
      return table_memory->Slice(0, table_memory->size());
    }
    [[nodiscard]] std::span<std::byte> Bytes(BlockIndex block) const {
      const uint64_t bytes = description.identity.block_bytes;
      return memory->Slice(block.value * bytes, bytes);
    }
  };

  [[nodiscard]] std::vector<LeftPool> TakeLeft() override {
    std::vector<LeftPool> left;
    for (auto kept = kept_.begin(); kept != kept_.end();) {
      const Result<PoolDescription> read = PoolTable::Read(kept->table_bytes(), Digest128{});
      if (!read) {
        refusals_.push_back(read.error().reason);
        kept = kept_.erase(kept);
        continue;
      }
      kept->table = std::make_unique<PoolTable>(kept->table_bytes());
      kept->table->BeginAdoption();
      left.push_back({kept->device, *read,
                      devices_[kept->device.value]->Reopen(kept->memory, kept->fd),
                      kept->table.get()});
      ++kept;
    }
    return left;
  }
  [[nodiscard]] PoolTable* Keep(DeviceIndex device, const PoolDescription& description,
                                const DevicePool& memory) override {
    const auto& pool = static_cast<const FakeDevicePool&>(memory);
    Kept& kept = kept_.emplace_back();
    kept.device = device;
    kept.description = description;
    kept.memory = pool.memory();
    kept.fd = pool.shareable_fd();
    kept.table_memory = std::make_unique<AlignedBytes>(PoolTable::BytesFor(description.blocks), 0);
    PoolTable::Format(description, kept.table_bytes());
    kept.table = std::make_unique<PoolTable>(kept.table_bytes());
    return kept.table.get();
  }
  void Release(PoolTable* table, const std::string& refused) override {
    if (!refused.empty()) refusals_.push_back(refused);
    std::erase_if(kept_, [&](const Kept& kept) { return kept.table.get() == table; });
  }

  // In the order in which they were made.
  [[nodiscard]] const std::vector<Kept>& kept() const { return kept_; }
  [[nodiscard]] const std::vector<std::string>& refusals() const { return refusals_; }
  void LoseAll() { kept_.clear(); }

 private:
  const std::vector<std::unique_ptr<FakeDevice>>& devices_;
  std::vector<Kept> kept_;
  std::vector<std::string> refusals_;
};

}  // namespace kvtier
