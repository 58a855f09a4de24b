// SPDX-License-Identifier: Apache-2.0
// The daemon as the owner of its cache: tells the log, and knows who else reads pools.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "gpu/host_device.h"
#include "tiers/state/cache_environment.h"
#include "tiers/types/incident.h"

namespace kvtier {

class AttentionService;
class Log;

// Writes what goes wrong in the cache to the log. A disk that fails makes thousands of incidents a
// second: a few lines of each kind tell what there is to know, and how many more there were. Event
// loop only. Both are borrowed.
class IncidentLog {
 public:
  IncidentLog(EventLoop* loop, Log* log, int64_t period_ms = kPeriodMs)
      : log_(*log), period_ms_(period_ms), summary_(loop) {}

  // The names of the disk tier's files, by the numbers that incidents have.
  void NameFiles(std::vector<std::string> files) { files_ = std::move(files); }
  // Writes a line, unless kLinesPerPeriod of its kind have been written in this period. When the
  // period ends, one line says how many more of a kind there were.
  void Write(const Incident& incident);

  static constexpr uint32_t kLinesPerPeriod = 10;
  static constexpr int64_t kPeriodMs = 60'000;

 private:
  [[nodiscard]] std::string Describe(const Incident& incident) const;
  void WriteLine(IncidentKind kind, const std::string& text);
  // The period has ended; there is another while incidents go on.
  void Summarize();

  Log& log_;
  const int64_t period_ms_;
  std::vector<std::string> files_;
  std::array<uint64_t, kIncidentKindCount> seen_{};  // in this period
  bool counting_ = false;                            // a period has begun
  Timer summary_;
};

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
