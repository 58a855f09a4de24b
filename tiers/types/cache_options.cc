// SPDX-License-Identifier: Apache-2.0
#include "tiers/types/cache_options.h"

#include <fmt/format.h>

#include <string_view>

namespace kvtier {
namespace {

tl::unexpected<Error> OutOfRange(std::string_view field, double value, std::string_view range) {
  return MakeError(ErrorCode::kInvalidArgument, "option_out_of_range",
                   fmt::format("{} = {} is not {}", field, value, range));
}

Status CheckFraction(std::string_view field, double value) {
  if (value >= 0.0 && value <= 0.9) return {};
  return OutOfRange(field, value, "between 0 and 0.9");
}

Status CheckPositive(std::string_view field, uint64_t value) {
  if (value > 0) return {};
  return OutOfRange(field, 0, "greater than 0");
}

Status CheckMs(std::string_view field, int64_t value) {
  if (value >= 0) return {};
  return OutOfRange(field, static_cast<double>(value), "0 or more");
}

Status CheckQuota(const TenantQuota& tenant, uint64_t slab_bytes) {
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    const TierQuota& quota = tenant.tiers[tier];
    if (quota.max_bytes == 0) continue;
    if (quota.reserved_bytes > quota.max_bytes) {
      return OutOfRange(
          fmt::format("tenant \"{}\": {}_reserved_bytes", tenant.name, kTierNames[tier]),
          static_cast<double>(quota.reserved_bytes), "within its cap");
    }
    // One block of any model must find room, if only to pass through.
    if (tier != static_cast<size_t>(Tier::kPool) && quota.max_bytes < slab_bytes) {
      return OutOfRange(fmt::format("tenant \"{}\": {}_max_bytes", tenant.name, kTierNames[tier]),
                        static_cast<double>(quota.max_bytes), "at least slab_bytes");
    }
  }
  KVT_RETURN_IF_ERROR(CheckMs("tenant's memory_ttl_ms", tenant.memory_ttl_ms));
  KVT_RETURN_IF_ERROR(CheckMs("tenant's extended_ttl_ms", tenant.extended_ttl_ms));
  return CheckMs("tenant's max_age_ms", tenant.max_age_ms);
}

}  // namespace

Status CacheOptions::Validate() const {
  constexpr uint64_t kMinSlabBytes = 64 * kKiB;
  constexpr uint64_t kMaxSlabBytes = 4 * kGiB;
  if (slab_bytes < kMinSlabBytes || slab_bytes > kMaxSlabBytes || slab_bytes % 4096 != 0) {
    return OutOfRange("slab_bytes", static_cast<double>(slab_bytes),
                      "a multiple of 4 KiB between 64 KiB and 4 GiB");
  }
  KVT_RETURN_IF_ERROR(CheckPositive("pool_bytes", pool_bytes));
  KVT_RETURN_IF_ERROR(CheckFraction("pool_clean_fraction", pool_clean_fraction));
  KVT_RETURN_IF_ERROR(CheckFraction("host_clean_fraction", host_clean_fraction));
  KVT_RETURN_IF_ERROR(CheckFraction("disk_free_fraction", disk_free_fraction));
  KVT_RETURN_IF_ERROR(CheckFraction("pin_fraction", pin_fraction));
  KVT_RETURN_IF_ERROR(CheckMs("max_wait_ms", max_wait_ms));
  KVT_RETURN_IF_ERROR(CheckMs("read_slot_wait_ms", read_slot_wait_ms));
  KVT_RETURN_IF_ERROR(CheckMs("memory_ttl_ms", memory_ttl_ms));
  KVT_RETURN_IF_ERROR(CheckMs("extended_ttl_ms", extended_ttl_ms));
  KVT_RETURN_IF_ERROR(CheckMs("max_age_ms", max_age_ms));
  KVT_RETURN_IF_ERROR(CheckMs("persist_after_ms", persist_after_ms));
  KVT_RETURN_IF_ERROR(CheckMs("keep_unusable_ms", keep_unusable_ms));
  KVT_RETURN_IF_ERROR(CheckPositive("max_load_bytes", max_load_bytes));
  KVT_RETURN_IF_ERROR(CheckPositive("max_offload_bytes", max_offload_bytes));
  KVT_RETURN_IF_ERROR(CheckPositive("max_disk_read_bytes", max_disk_read_bytes));
  KVT_RETURN_IF_ERROR(CheckPositive("max_disk_write_bytes", max_disk_write_bytes));
  KVT_RETURN_IF_ERROR(CheckPositive("layer_piece_bytes", layer_piece_bytes));
  KVT_RETURN_IF_ERROR(CheckPositive("max_references_per_session", max_references_per_session));
  KVT_RETURN_IF_ERROR(CheckPositive("acquire_part_blocks", acquire_part_blocks));
  KVT_RETURN_IF_ERROR(CheckPositive("drain_part_rows", drain_part_rows));
  KVT_RETURN_IF_ERROR(CheckPositive("close_part_blocks", close_part_blocks));
  KVT_RETURN_IF_ERROR(CheckPositive("search_part_blocks", search_part_blocks));
  if (tenants.size() > kMaxTenants) {
    return OutOfRange("tenants", static_cast<double>(tenants.size()), "256 or less");
  }
  for (const TenantQuota& tenant : tenants) {
    KVT_RETURN_IF_ERROR(CheckQuota(tenant, slab_bytes));
  }
  return {};
}

}  // namespace kvtier
