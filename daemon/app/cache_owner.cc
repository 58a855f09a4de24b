// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/cache_owner.h"

#include "base/units.h"
#include "daemon/attention/attention_service.h"
#include "daemon/runtime/log.h"

namespace kvtier {

bool DaemonCacheOwner::ReadsPool(PoolId pool) { return attention_.ReadsPool(pool); }

void DaemonCacheOwner::OnAdopted(const AdoptionReport& report) {
  log_.Info("host.blocks_adopted",
            "{} blocks of an earlier daemon, {}, verified in {} ms; {} dropped", report.blocks,
            FormatByteSize(report.bytes), report.ms, report.dropped);
}

void DaemonCacheOwner::OnKeysExpired(uint64_t keys) {
  log_.Info("disk.keys_expired", "{} encryption keys are gone: no block needs them", keys);
}

void DaemonCacheOwner::OnErasureResumed(const std::string& tenant, const EraseReport& report,
                                        const Status& status) {
  log_.Warning("erase.resumed",
               "tenant {}: an erasure that an earlier daemon began has {}: {} keys, {} blocks of "
               "host, {} of disk",
               tenant, status ? "ended" : "failed: " + status.error().ToString(), report.keys,
               report.blocks[static_cast<size_t>(Tier::kHost)],
               report.blocks[static_cast<size_t>(Tier::kDisk)]);
}

}  // namespace kvtier
