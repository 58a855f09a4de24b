// SPDX-License-Identifier: Apache-2.0
// The daemon as the owner of its cache: tells the log, and knows who else reads pools.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/app/incident_log.h"
#include "gpu/host_device.h"
#include "tiers/state/cache_environment.h"

namespace kvtier {

class AttentionService;
class Log;

// Event loop only. Outlives the cache.
class DaemonCacheOwner final : public CacheOwner {
 public:
  // All are borrowed and outlive this.
  DaemonCacheOwner(EventLoop* loop, Log* log, const AttentionService* attention)
      : lent_host_memory_(loop), log_(*log), incidents_(loop, log), attention_(*attention) {}

  // Copies to and from regions in host memory.
  [[nodiscard]] Device* lent_host_memory() { return &lent_host_memory_; }

  // The names of the disk tier's files, for the log.
  void NameFiles(std::vector<std::string> files) { incidents_.NameFiles(std::move(files)); }

  bool ReadsPool(PoolId pool) override;
  void OnAdopted(const AdoptionReport& report) override;
  void OnKeysExpired(uint64_t keys) override;
  void OnErasureResumed(const std::string& tenant, const EraseReport& report,
                        const Status& status) override;
  void OnIncident(const Incident& incident) override { incidents_.Write(incident); }

 private:
  HostDevice lent_host_memory_;
  Log& log_;
  IncidentLog incidents_;
  const AttentionService& attention_;
};

}  // namespace kvtier
