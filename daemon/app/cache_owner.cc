// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/cache_owner.h"

#include <fmt/format.h>

#include "base/units.h"
#include "daemon/attention/attention_service.h"

namespace kvtier {

// "/mnt/nvme0/kvtier/blocks.kvt at 9437184: checksum_mismatch (tenant default, model 3f...)". A
// drive has no place in its file.
std::string IncidentLog::Describe(const Incident& incident) const {
  std::string text;
  if (incident.place) {
    const uint32_t file = incident.place->file;
    text = file < files_.size() ? files_[file] : fmt::format("file {}", file);
    if (incident.place->offset > 0) text += fmt::format(" at {}", incident.place->offset);
    text += ": ";
  }
  text += incident.reason;
  if (incident.whose) {
    text +=
        fmt::format(" (tenant {}, model {})", incident.whose->tenant, incident.whose->model.Hex());
  }
  return text;
}

void IncidentLog::Write(const Incident& incident) {
  if (!std::exchange(counting_, true)) summary_.Start(period_ms_, [this] { Summarize(); });
  if (++seen_[static_cast<size_t>(incident.kind)] > kLinesPerPeriod) return;
  WriteLine(incident.kind, Describe(incident));
}

void IncidentLog::Summarize() {
  counting_ = false;
  for (int kind = 0; kind < kIncidentKindCount; ++kind) {
    const uint64_t seen = std::exchange(seen_[kind], 0);
    if (seen <= kLinesPerPeriod) continue;
    WriteLine(static_cast<IncidentKind>(kind),
              fmt::format("{} more within {} s", seen - kLinesPerPeriod, period_ms_ / 1000));
  }
}

void IncidentLog::WriteLine(IncidentKind kind, const std::string& text) {
  switch (kind) {
    case IncidentKind::kDamaged:
      return log_.Warning("disk.damaged", "{}; a miss, and the place is not used again", text);
    case IncidentKind::kReadFailed:
      return log_.Warning("disk.read_failed", "{}; a miss, and the place is not used again", text);
    case IncidentKind::kWriteFailed:
      return log_.Warning("disk.write_failed", "{}; the place is not used again", text);
    case IncidentKind::kIndexFailed:
      return log_.Warning("disk.index_failed", "{}; it is tried again", text);
    case IncidentKind::kHeaderKept:
      return log_.Warning("disk.header_kept",
                          "{}; a rebuilt index may find the evicted block again", text);
    case IncidentKind::kWritesPaused:
      return log_.Warning("disk.writes_paused",
                          "{}; blocks live in memory only until a write succeeds", text);
    case IncidentKind::kWritesResumed:
      return log_.Info("disk.writes_resumed", "a write is durable again{}", text);
    case IncidentKind::kBudgetSpent:
      return log_.Warning("disk.budget_spent",
                          "{} is spent: nothing more is written until 00:00 UTC", text);
    case IncidentKind::kColdDamaged:
      return log_.Warning("cold.damaged", "{}; a miss", text);
    case IncidentKind::kColdFailed:
      return log_.Warning("cold.failed", "{}", text);
    case IncidentKind::kPoolExhausted:
      return log_.Warning("pool.exhausted",
                          "{}; the client computes into memory of its own or "
                          "tries again",
                          text);
    case IncidentKind::kOverwritten:
      return log_.Warning("pool.overwritten",
                          "{}; a client wrote to a block after it had committed it, and the block "
                          "is lost",
                          text);
    case IncidentKind::kCopyFailed:
      return log_.Warning("device.copy_failed", "{}", text);
    case IncidentKind::kRestartDamaged:
      return log_.Warning("restart.damaged", "{}; it is not taken over", text);
    case IncidentKind::kKvDiffers:
      return log_.Warning("canary.differs", "{}; the block is dropped", text);
    case IncidentKind::kDriveFailed:
      return log_.Error("disk.drive_failed",
                        "{}; the drive's blocks are misses and nothing is written to it until a "
                        "restart, the other drives go on",
                        text);
    case IncidentKind::kNotEncrypted:
      return log_.Warning("disk.not_encrypted", "{}; the block stays in memory", text);
    case IncidentKind::kDistrusted:
      return log_.Error("canary.distrusted",
                        "{}; none of its blocks is served until `kvtierctl forget`", text);
  }
}

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
