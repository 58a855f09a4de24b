// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

// By PoolEviction.
constexpr std::array<std::string_view, 3> kEvictionNames = {"cls", "lru", "cls always"};

uint64_t OneOf(SeededRandom& random, std::initializer_list<uint64_t> choices) {
  return *(choices.begin() + random.Below(choices.size()));
}

double Fraction(SeededRandom& random, double highest) {
  return highest * static_cast<double>(random.Below(101)) / 100;
}

CacheOptions DrawOptions(SeededRandom& random) {
  CacheOptions options;
  options.pool_clean_fraction = Fraction(random, 0.5);
  options.host_clean_fraction = Fraction(random, 0.5);
  options.disk_free_fraction = Fraction(random, 0.2);
  options.max_wait_ms = static_cast<int64_t>(random.Between(1, 300));
  options.memory_ttl_ms = static_cast<int64_t>(random.Between(1, 20)) * kMinuteMs;
  options.extended_ttl_ms = static_cast<int64_t>(random.Between(1, 24)) * kHourMs;
  if (random.Chance(0.2))
    options.max_age_ms = static_cast<int64_t>(random.Between(1, 30)) * kHourMs;
  options.persist_after_ms = static_cast<int64_t>(random.Between(1, 60'000));
  if (random.Chance(0.2)) {
    options.disk_write_budget_bytes_per_day = random.Between(1, 60) * 16 * kKiB;
  }
  options.pin_fraction = Fraction(random, 0.6);
  const auto draw_bound = [&] {
    return random.Chance(0.5) ? 8 * kKiB : random.Between(1, 64) * 16 * kKiB;
  };
  options.max_load_bytes = draw_bound();
  options.max_offload_bytes = draw_bound();
  options.max_disk_read_bytes = draw_bound();
  options.max_disk_write_bytes = draw_bound();
  options.layer_piece_bytes = 1;
  if (random.Chance(0.1)) options.max_references_per_session = 8;
  return options;
}

MachineSizes DrawSizes(SeededRandom& random, uint64_t slab_bytes) {
  MachineSizes sizes;
  sizes.slab_bytes = slab_bytes;
  sizes.host_slabs = static_cast<uint32_t>(random.Between(1, 4));
  sizes.host_slabs_ready = static_cast<uint32_t>(
      random.Chance(0.7) ? sizes.host_slabs : random.Below(sizes.host_slabs + 1));
  sizes.disk_files = static_cast<uint32_t>(random.Chance(0.1) ? 0 : random.Between(1, 2));
  sizes.disk_slabs = static_cast<uint32_t>(sizes.disk_files == 0 ? 0 : random.Between(2, 8));
  return sizes;
}

void DrawNamespaces(SeededRandom& random, SimPlan* plan) {
  const uint64_t count = random.Between(1, 3);
  for (uint64_t i = 0; i < count; ++i) {
    SimNamespace name_space;
    name_space.identity.block_bytes = OneOf(random, {4, 4, 4, 8, 12, 16}) * kKiB;
    // The first two share their tenant, the first and third their model.
    name_space.identity.tenant = i < 2 ? "alpha" : "beta";
    name_space.identity.model.bytes.fill(i == 1 ? 2 : 1);
    if (i == 2) name_space.identity.block_bytes = plan->namespaces[0].identity.block_bytes;
    name_space.pool_bytes = name_space.identity.block_bytes * random.Between(4, 24);
    plan->options.pool_bytes += name_space.pool_bytes;
    plan->namespaces.push_back(name_space);
  }
  plan->sizes.device_bytes = plan->options.pool_bytes;
}

// Half of the seeds have no faults at all: these can be judged most strictly.
void DrawFaults(SeededRandom& random, SimPlan* plan) {
  if (random.Chance(0.5)) return;
  if (random.Chance(0.6)) {
    plan->disk_faulty = true;
    plan->disk_faults = DiskFaultRates::All(random.Chance(0.8) ? 0.02 : 0.15);
  }
  if (random.Chance(0.3)) plan->index_failure_rate = random.Chance(0.7) ? 0.05 : 0.5;
  if (random.Chance(0.3)) plan->copy_failure_rate = random.Chance(0.7) ? 0.02 : 0.3;
  if (random.Chance(0.3)) plan->index_tail_loss_rate = 0.5;
}

// Draws a quota within the tier, together with all earlier reserves.
TierQuota DrawTierQuota(SeededRandom& random, uint64_t slabs, uint64_t slab_bytes,
                        uint64_t* slabs_left) {
  TierQuota quota;
  if (random.Chance(0.6) && slabs > 0) {
    quota.max_bytes = slab_bytes + random.Below(slabs) * slab_bytes / 2;
  }
  if (random.Chance(0.6) && *slabs_left > 0) {
    const uint64_t wanted = random.Between(1, *slabs_left);
    // Not always whole slabs.
    const uint64_t bytes = wanted * slab_bytes - random.Below(slab_bytes);
    quota.reserved_bytes = quota.max_bytes == 0 ? bytes : std::min(bytes, quota.max_bytes);
    *slabs_left -= (quota.reserved_bytes + slab_bytes - 1) / slab_bytes;
  }
  return quota;
}

// Two of five seeds have quotas. Drawn last: the rest of a seed's plan is the same without them.
void DrawQuotas(SeededRandom& random, SimPlan* plan) {
  if (random.Chance(0.6)) return;
  const uint64_t slab_bytes = plan->sizes.slab_bytes;
  // One slab is left to tenants for whom nothing is reserved.
  uint64_t host_left = std::max(plan->sizes.host_slabs_ready, 1u) - 1;
  uint64_t disk_left = std::max(plan->sizes.disk_slabs, 1u) - 1;
  for (const char* name : {"alpha", "beta"}) {
    if (random.Chance(0.3)) continue;
    TenantQuota tenant{.name = name};
    uint64_t pool_bytes = 0;
    for (const SimNamespace& name_space : plan->namespaces) {
      if (name_space.identity.tenant == name)
        pool_bytes += name_space.pool_bytes * plan->sizes.devices;
    }
    if (random.Chance(0.5)) tenant.tiers[0] = {pool_bytes, random.Below(pool_bytes + 1)};
    tenant.tiers[1] = DrawTierQuota(random, plan->sizes.host_slabs, slab_bytes, &host_left);
    tenant.tiers[2] = DrawTierQuota(random, plan->sizes.disk_slabs, slab_bytes, &disk_left);
    if (random.Chance(0.3)) tenant.extended_ttl_ms = random.Between(1, 24) * kHourMs;
    if (random.Chance(0.3)) tenant.memory_ttl_ms = random.Between(1, 20) * kMinuteMs;
    if (random.Chance(0.2)) tenant.max_age_ms = random.Between(1, 30) * kHourMs;
    plan->options.tenants.push_back(std::move(tenant));
  }
}

// Three of four seeds do little in one event, so that much happens between two parts. From a stream
// of their own: the rest of a seed's plan is the same without them.
constexpr uint64_t kPartsStream = 0x70617274;
void DrawParts(SeededRandom random, CacheOptions* options) {
  const auto draw = [&](uint32_t* part) {
    if (random.Chance(0.75)) *part = static_cast<uint32_t>(random.Between(1, 8));
  };
  draw(&options->close_part_blocks);
  draw(&options->drain_part_rows);
  draw(&options->search_part_blocks);
}

// In half of the seeds host memory may outlive the daemon, and in half pools learn what to evict.
// From streams of their own, too.
constexpr uint64_t kKeepStream = 0x6b656570;
constexpr uint64_t kEraseStream = 0x65726173;
constexpr uint64_t kKeepPoolsStream = 0x6b706f6c;
constexpr uint64_t kEvictionStream = 0x65766963;
constexpr uint64_t kWishStream = 0x77697368;
constexpr uint64_t kRegionStream = 0x7265676e;
constexpr uint64_t kNeighbourStream = 0x6e656967;

}  // namespace

SimPlan MakeSimPlan(uint64_t seed, uint32_t steps) {
  SeededRandom random(seed);
  SimPlan plan{.seed = seed, .steps = steps};
  plan.options = DrawOptions(random);
  plan.options.pool_bytes = 0;
  plan.options.slab_bytes = OneOf(random, {64, 96, 128}) * kKiB;
  plan.sizes = DrawSizes(random, plan.options.slab_bytes);
  DrawNamespaces(random, &plan);
  DrawFaults(random, &plan);
  plan.crash_rate = random.Chance(0.3) ? 0 : 0.015;
  plan.sessions = static_cast<uint32_t>(random.Between(1, 4));
  plan.sizes.devices = static_cast<uint32_t>(random.Chance(0.5) ? 1 : random.Between(2, 3));
  DrawQuotas(random, &plan);
  if (random.Chance(0.6)) plan.options.acquire_part_blocks = random.Between(1, 4);
  DrawParts(SeededRandom(seed ^ kPartsStream), &plan.options);
  plan.options.keep_unusable_ms = static_cast<int64_t>(OneOf(random, {0, 0, 1000, 60'000}));
  plan.sizes.keep_host = SeededRandom(seed ^ kKeepStream).Chance(0.5);
  plan.erases = SeededRandom(seed ^ kEraseStream).Chance(0.3);
  plan.sizes.keep_pools = SeededRandom(seed ^ kKeepPoolsStream).Chance(0.5);
  plan.options.pool_eviction =
      static_cast<PoolEviction>(SeededRandom(seed ^ kEvictionStream).Below(kEvictionNames.size()));
  plan.wish_rate = SeededRandom(seed ^ kWishStream).Chance(0.5) ? 0.5 : 0;
  plan.lends_regions = SeededRandom(seed ^ kRegionStream).Chance(0.5);
  plan.sizes.neighbours = SeededRandom(seed ^ kNeighbourStream).Chance(0.5);
  // Beside the pools, and more than regions ever take.
  if (plan.lends_regions) plan.sizes.device_bytes += 4 * kMiB;
  KVT_CHECK(plan.options.Validate().has_value());
  return plan;
}

std::string Describe(const SimPlan& plan) {
  return fmt::format(
      "seed {} steps {}: {} spaces, {} devices, {} sessions, host {}+{} slabs of {}, disk {} "
      "slabs in {} files, faults: disk {} index {} copy {} tail {}, crashes {}, {} tenants with "
      "quotas, host memory {}, pools {}, pool eviction {}, wishes {}, erasures "
      "{}, regions {}, neighbours {}",
      plan.seed, plan.steps, plan.namespaces.size(), plan.sizes.devices, plan.sessions,
      plan.sizes.host_slabs_ready, plan.sizes.host_slabs - plan.sizes.host_slabs_ready,
      FormatByteSize(plan.sizes.slab_bytes), plan.sizes.disk_slabs, plan.sizes.disk_files,
      plan.disk_faults.torn_write, plan.index_failure_rate, plan.copy_failure_rate,
      plan.index_tail_loss_rate, plan.crash_rate, plan.options.tenants.size(),
      plan.sizes.keep_host ? "kept" : "not kept", plan.sizes.keep_pools ? "kept" : "not kept",
      kEvictionNames[static_cast<size_t>(plan.options.pool_eviction)], plan.wish_rate,
      plan.erases ? "yes" : "no", plan.lends_regions ? "yes" : "no",
      plan.sizes.neighbours ? "yes" : "no");
}

}  // namespace kvtier
