// SPDX-License-Identifier: Apache-2.0
// The tenants of a configuration: which users they are, whether their quotas can be kept, and what
// of them the cache is told.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {

// In place of a position in a file: a reload has removed the tenant, whose reserves stay until a
// restart.
inline constexpr std::string_view kPlaceOfRemoved = "(removed)";

// Whether some quota or time to live is the tenant's own. Tenants without any share the rest.
[[nodiscard]] bool HasQuota(const TenantConfig& tenant);

// The quotas of those tenants that have any, with their names, in the configuration's order.
[[nodiscard]] std::vector<TenantQuota> QuotasOf(const std::vector<TenantConfig>& tenants);

// How many slabs of a tier that is cut into slabs are reserved, each tenant's reserve rounded up.
[[nodiscard]] uint64_t ReservedSlabs(const std::vector<TenantQuota>& tenants, Tier tier,
                                     uint64_t slab_bytes);
// How many bytes of pools are reserved, over all tenants and devices.
[[nodiscard]] uint64_t ReservedPoolBytes(const std::vector<TenantQuota>& tenants);

// Errors: kInvalidArgument "config_conflict", naming place, key and remedy. At least one slab of
// host and of disk must be left unreserved, since tenants without reserves could store nothing
// otherwise.
[[nodiscard]] Status CheckQuotas(const Config& config);

// Sets `user_uids` of every tenant. Asks the machine's user database, which may go over the network
// and take seconds: never on the event loop. Errors: kInvalidArgument "config_unknown_user", naming
// the place.
[[nodiscard]] Status LookUpUsers(Config* config);

}  // namespace kvtier
