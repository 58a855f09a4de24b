// SPDX-License-Identifier: Apache-2.0
// Memory of pools that outlives the daemon: gives what an earlier one left to the cache, and has
// the cache's own kept, each pool as two descriptors, of its memory and of the table beside it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "base/tenant_budget.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/runtime/log.h"
#include "tiers/state/pool_keeper.h"

namespace kvtier {

class KeeperLink;
struct OpenedDevice;

// Pools beyond these end with the daemon. A tenant alone may have half (TenantBudget).
inline constexpr uint32_t kMaxKeptPools = 48;

// Event loop only, or the time before it runs. Owns the tables. Memory that cannot be kept or taken
// over is in the log, and the daemon serves.
class KeptPools final : public PoolKeeper {
 public:
  // Takes what an earlier daemon left. Nothing is kept where nothing holds it. Both are borrowed
  // and outlive this.
  KeptPools(DescriptorStore* store, Log* log);
  ~KeptPools() override;
  KeptPools(const KeptPools&) = delete;
  KeptPools& operator=(const KeptPools&) = delete;

  // Whether the cache's own pools are kept.
  [[nodiscard]] bool keeps() const { return keep_; }
  // The bytes of the device's memory that pools of an earlier daemon have: they are free for pools,
  // though the device does not say so.
  [[nodiscard]] uint64_t BytesOn(const DeviceInfo& device) const;
  // The largest cap under which pools in host memory were made that an earlier daemon left with the
  // keeper; 0 if there are none. Any thread.
  [[nodiscard]] static uint64_t HostCap(KeeperLink* keeper);
  // Before the cache is made. A cap that has changed costs no pool that it has room for.
  void SetDevices(const std::vector<OpenedDevice>* devices) { devices_ = devices; }

  [[nodiscard]] std::vector<LeftPool> TakeLeft() override;
  [[nodiscard]] PoolTable* Keep(DeviceIndex device, const PoolDescription& description,
                                const DevicePool& memory) override;
  void Release(PoolTable* table, const std::string& refused) override;

  // The outcome for each pool that an earlier daemon left: "adopted", or the reason why not.
  struct Outcome {
    std::string tenant;
    uint64_t bytes = 0;
    std::string adoption;
  };
  [[nodiscard]] const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  struct Pool;
  using Pools = std::vector<std::unique_ptr<Pool>>;

  // Looks at what stands under the number, if anything does.
  void Look(uint32_t number);
  // The device of the pool, and its memory there. Errors: "no_device", "other_driver",
  // "size_changed", "other_memory", "held_by_clients" (some live, and may write to more than
  // half of it), and those of Device::AdoptPool.
  [[nodiscard]] Result<LeftPool> Open(Pool* pool);
  void Refuse(const Pool& pool, const std::string& reason);
  // The holder forgets both descriptors.
  void Forget(uint32_t number);

  DescriptorStore& store_;
  Log& log_;
  const Digest128 boot_id_;
  const bool keep_;
  const std::vector<OpenedDevice>* devices_ = nullptr;
  Pools left_;
  Pools pools_;
  std::set<uint32_t> free_numbers_;
  TenantBudget places_{kMaxKeptPools};  // of pools_
  std::vector<Outcome> outcomes_;
};

}  // namespace kvtier
