// SPDX-License-Identifier: Apache-2.0
// "erase": a tenant's blocks are gone for good, and the log keeps that they are.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/units.h"
#include "daemon/admin/admin_operations.h"
#include "daemon/config/config.h"
#include "daemon/runtime/log.h"
#include "tiers/cache.h"

namespace kvtier {
namespace {

namespace json = boost::json;

json::object ByTier(const std::array<uint64_t, kTierCount>& counts) {
  return {{"pool", counts[static_cast<size_t>(Tier::kPool)]},
          {"host", counts[static_cast<size_t>(Tier::kHost)]},
          {"disk", counts[static_cast<size_t>(Tier::kDisk)]}};
}

bool HasUnencryptedDisk(const Config& config) {
  return config.disk.bytes > 0 && config.disk.encryption == DiskEncryption::kNone;
}

bool HasPlainColdTier(const Config& config) {
  return !config.cold.endpoint.empty() && config.disk.encryption == DiskEncryption::kNone;
}

// The tenants of the configuration, and those that there are or were blocks of.
std::set<std::string> KnownTenants(const Config& config, const Cache& cache) {
  std::set<std::string> names;
  for (const TenantConfig& tenant : config.tenants) names.insert(tenant.name);
  if (names.empty()) names.insert(std::string(kDefaultTenant));
  for (uint32_t id = 0; id < cache.NamespaceCount(); ++id) {
    names.insert(cache.IdentityOf(NamespaceId(id)).tenant);
  }
  return names;
}

// A mistyped name must not look like an erasure, which an operator may have to vouch for.
Status CheckTenant(const Config& config, const Cache& cache, const std::string& tenant) {
  const std::set<std::string> known = KnownTenants(config, cache);
  if (known.contains(tenant)) return {};
  return MakeError(ErrorCode::kNotFound, "unknown_tenant",
                   fmt::format("there is no tenant \"{}\", neither configured nor with blocks "
                               "here; there are {}. One of which only a store that hosts share "
                               "has objects is to be configured first",
                               tenant, fmt::join(known, ", ")));
}

// An erasure goes on when its caller has gone, because half of one is of no use. Its lines in the
// log are warnings, so that no usual level leaves them out.
class Erase final : public AdminOperation {
 public:
  Erase(const OperationBasics& basics, const Config* config, Log* log,
        std::shared_ptr<AdminCall> call, AdminRequestBody request)
      : AdminOperation(basics, std::move(call)),
        config_(*config),
        log_(*log),
        request_(std::move(request)) {}

  // Blocks of an earlier daemon may be the first that tell of the tenant.
  void Run() override {
    if (CheckTenant(config_, cache_, request_.tenant)) return Begin();
    WhenAdopted([this] {
      const Status known = CheckTenant(config_, cache_, request_.tenant);
      known ? Begin() : Fail(known.error());
    });
  }

 private:
  void Begin() {
    const std::optional<int64_t> before_ms = request_.before_ms;
    EraseRequest erase{.tenant = request_.tenant};
    if (before_ms) erase.end_hour = static_cast<uint32_t>(*before_ms / kHourMs);
    log_.Warning("erase.begun", "tenant {}{}", request_.tenant,
                 before_ms ? fmt::format(", hours before {} ms", *before_ms) : "");
    cache_.Erase(erase, WhileAlive([this](const EraseReport& report, const Status& status) {
                   OnErased(report, status);
                 }));
    ReportForever();
  }

  void OnErased(const EraseReport& report, const Status& status) {
    if (!status) {
      log_.Warning("erase.failed", "tenant {}: {}", request_.tenant, status.error().ToString());
      return Fail(status.error());
    }
    log_.Warning("erase.ended",
                 "tenant {}: {} keys, {} blocks of pools, {} of host, {} of disk; {} "
                 "referenced, {} in use stay",
                 request_.tenant, report.keys, report.blocks[0], report.blocks[1], report.blocks[2],
                 report.referenced, report.moving);
    Reply(json::serialize(
        json::object{{"schema", "kvtier.erase/1"},
                     {"tenant", request_.tenant},
                     {"before_ms", request_.before_ms ? json::value(*request_.before_ms) : nullptr},
                     {"proven", !HasUnencryptedDisk(config_) && !HasPlainColdTier(config_)},
                     {"keys", report.keys},
                     {"blocks", ByTier(report.blocks)},
                     {"bytes", ByTier(report.bytes)},
                     {"referenced", report.referenced},
                     {"moving", report.moving},
                     {"seconds", Seconds()}}));
  }

  void ReportForever() {
    Later(kAdminProgressMs, [this] {
      Progress(json::serialize(json::object{{"waited_ms", ElapsedMs()}}));
      ReportForever();
    });
  }

  const Config& config_;
  Log& log_;
  const AdminRequestBody request_;
};

}  // namespace

Result<std::unique_ptr<AdminOperation>> MakeErasure(const OperationBasics& basics,
                                                    const Config* config, Log* log,
                                                    const AdminRequestBody& request,
                                                    std::shared_ptr<AdminCall> call) {
  if (request.tenant.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_request", "\"tenant\" is missing");
  }
  if (basics.cache->AdoptionEnded()) {
    KVT_RETURN_IF_ERROR(CheckTenant(*config, *basics.cache, request.tenant));
  }
  if (request.before_ms.value_or(0) > basics.clock->WallMs()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_request", "\"before_ms\" is in the future");
  }
  if (HasPlainColdTier(*config) && !request.without_proof) {
    return MakeError(ErrorCode::kUnsupported, "cold_tier",
                     "the store of the cold tier has the tenant's blocks as plain bytes, and none "
                     "can prove that its drives lose them when they are deleted; --without-proof "
                     "deletes them and drops the blocks of this host nevertheless");
  }
  if (HasUnencryptedDisk(*config) && !request.without_proof) {
    return MakeError(ErrorCode::kUnsupported, "not_encrypted",
                     "the disk is not encrypted: freed bytes stay there until they are written "
                     "over, and none can prove that they are gone; --without-proof drops the "
                     "blocks nevertheless");
  }
  return std::make_unique<Erase>(basics, config, log, std::move(call), request);
}

}  // namespace kvtier
