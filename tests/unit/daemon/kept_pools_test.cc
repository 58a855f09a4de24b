// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/kept_pools.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/resources/device_opening.h"
#include "daemon/runtime/event_loop.h"
#include "gpu/host_device.h"

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

}  // namespace
}  // namespace kvtier
