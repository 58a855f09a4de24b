// SPDX-License-Identifier: Apache-2.0
// Choices of a seed before the first step: sizes, limits, which faults occur and how often.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/fakes/disk_faults.h"
#include "tests/fakes/fake_machine.h"
#include "tiers/types/cache_options.h"

namespace kvtier {

struct SimNamespace {
  NamespaceIdentity identity;
  uint64_t pool_bytes = 0;  // on each device
};

// A space's pool on one device.
struct SimPool {
  uint32_t name_space = 0;
  uint32_t device = 0;
  friend constexpr auto operator<=>(const SimPool&, const SimPool&) = default;
};

struct SimPlan {
  uint64_t seed = 0;
  uint32_t steps = 0;
  CacheOptions options;
  MachineSizes sizes;
  std::vector<SimNamespace> namespaces;

  DiskFaultRates disk_faults;
  bool disk_faulty = false;  // any of the above
  double index_failure_rate = 0;
  double copy_failure_rate = 0;
  double index_tail_loss_rate = 0;  // of crashes that cut the index's acknowledged end
  double crash_rate = 0;            // per step
  uint32_t sessions = 1;            // at most so many at once
  bool erases = false;              // a tenant's blocks, now and then
  double wish_rate = 0;             // of acquires that say which loads are worth it
  bool lends_regions = false;       // engines that number their blocks themselves are there
};

[[nodiscard]] SimPlan MakeSimPlan(uint64_t seed, uint32_t steps);
// One line for a person.
[[nodiscard]] std::string Describe(const SimPlan& plan);

}  // namespace kvtier
