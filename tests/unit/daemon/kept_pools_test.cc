// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/kept_pools.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/resources/device_opening.h"
#include "daemon/runtime/event_loop.h"
#include "gpu/host_device.h"
#include "tiers/memory/adoption_count.h"

namespace kvtier {
namespace {

// Keeps whatever it is given.
class AnyStore final : public DescriptorStore {
 public:
  [[nodiscard]] Holder holder() const override { return {}; }

 protected:
  std::optional<UniqueFd> DoTake(std::string_view /*name*/) override { return std::nullopt; }
  Status DoKeep(const std::string& /*name*/, const Descriptor& /*descriptor*/) override {
    return {};
  }
  void DoRelease(std::string_view /*name*/) override {}
  void DoReleaseAll() override {}
};

class KeptPoolsPlaces : public testing::Test {
 protected:
  KeptPoolsPlaces() {
    devices_.push_back({.device = std::make_unique<HostDevice>(&loop_)});
    kept_.SetDevices(&devices_);
    memory_ = *devices_[0].device->CreatePool(1);
  }
  PoolTable* Keep(const std::string& tenant) {
    return kept_.Keep(DeviceIndex(0), {.identity = {.tenant = tenant}, .blocks = 1}, *memory_);
  }
  // Keeps pools of the tenant until one is not kept.
  std::vector<PoolTable*> KeepMany(const std::string& tenant) {
    std::vector<PoolTable*> tables;
    while (PoolTable* const table = Keep(tenant)) tables.push_back(table);
    return tables;
  }

  EventLoop loop_;
  Log log_{LogConfig{.level = LogLevel::kError}};
  AnyStore store_;
  KeptPools kept_{&store_, &log_};
  std::vector<OpenedDevice> devices_;
  std::unique_ptr<DevicePool> memory_;
};

TEST_F(KeptPoolsPlaces, ATenantLeavesOthersAsManyAsItHas) {
  const std::vector<PoolTable*> tables = KeepMany("a");
  EXPECT_EQ(tables.size(), kMaxKeptPools / 2);
  EXPECT_NE(Keep("b"), nullptr);
  EXPECT_EQ(Keep("a"), nullptr);
  kept_.Release(tables[0], "");
  kept_.Release(tables[1], "");
  EXPECT_NE(Keep("a"), nullptr);
}

// The descriptors that a holder has, by name.
using Held = std::map<std::string, UniqueFd, std::less<>>;

// One daemon's, of a holder that outlives it.
class HeldStore final : public DescriptorStore {
 public:
  explicit HeldStore(Held* held) : held_(*held) {}
  [[nodiscard]] Holder holder() const override { return {}; }

 protected:
  std::optional<UniqueFd> DoTake(std::string_view name) override {
    const auto found = held_.find(name);
    if (found == held_.end()) return std::nullopt;
    return UniqueFd(::dup(found->second.get()));
  }
  Status DoKeep(const std::string& name, const Descriptor& descriptor) override {
    held_[name] = UniqueFd(::dup(descriptor->get()));
    return {};
  }
  void DoRelease(std::string_view name) override { held_.erase(std::string(name)); }
  void DoReleaseAll() override { held_.clear(); }

 private:
  Held& held_;
};

// The driver may be what ends the process, before the cache has looked at a block.
TEST(KeptPools, ADeathCountsFromTheMomentThatThePoolsMemoryIsTaken) {
  EventLoop loop;
  Log log{LogConfig{.level = LogLevel::kError}};
  std::vector<OpenedDevice> devices;
  devices.push_back({.device = std::make_unique<HostDevice>(&loop)});
  Held held;
  {
    HeldStore store(&held);
    KeptPools kept(&store, &log);
    kept.SetDevices(&devices);
    const auto memory = *devices[0].device->CreatePool(4096);
    PoolTable* const table = kept.Keep(DeviceIndex(0),
                                       {.identity = {.tenant = "a", .block_bytes = 4096},
                                        .memory_bytes = memory->bytes(),
                                        .blocks = 1},
                                       *memory);
    ASSERT_NE(table, nullptr);
    table->SetReady();
    // One less than costs the pool: an end in order takes one back.
    for (uint32_t deaths = 0; deaths < kMaxUnfinishedAdoptions; ++deaths) table->BeginAdoption();
  }
  HeldStore store(&held);
  KeptPools dying(&store, &log);
  dying.SetDevices(&devices);
  const std::vector<LeftPool> left = dying.TakeLeft();
  ASSERT_EQ(left.size(), 1u);
  HeldStore next_store(&held);
  const KeptPools next(&next_store, &log);
  ASSERT_EQ(next.outcomes().size(), 1u);
  EXPECT_EQ(next.outcomes()[0].adoption, "adoption_unfinished");
}

}  // namespace
}  // namespace kvtier
