// SPDX-License-Identifier: Apache-2.0
// All that the metrics page, the live page and `kvtierctl status` tell of the daemon, copied on the
// event loop in little time (sizes and counters, no walk over blocks), to be rendered elsewhere.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "daemon/attention/attention_service.h"
#include "daemon/events/event_report.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/metrics/model_metrics.h"
#include "daemon/resources/kept_pools.h"
#include "daemon/runtime/supervision.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/request_trace.h"
#include "daemon/session/session.h"
#include "tiers/types/cache_stats.h"

namespace kvtier {

class FormerClients;
class LoopLag;
class MappedArena;
class Server;
struct DiskStartFacts;
struct OpenedDevice;

// Counts of the last minutes, of blocks asked for, found and moved: for the live page, which should
// show more than the time since it was opened.
//
// Event loop only; copies are snapshots.
class HitHistory {
 public:
  static constexpr int64_t kIntervalMs = 5000;
  static constexpr size_t kPoints = 120;  // ten minutes

  // The counts of one interval.
  struct Point {
    std::array<uint64_t, kTierCount> hit_blocks{};
    uint64_t cold_blocks = 0;  // of the disk's, those that came from the cold store
    uint64_t missed_blocks = 0;
    std::array<uint64_t, kMissReasonCount> misses_by_reason{};
    std::array<uint64_t, kCopyLaneCount> copied_bytes{};  // by CopyLane
  };

  // To be called more often than once per interval, with the counters of now. The first call only
  // begins an interval.
  void Tick(const CacheStats& stats, int64_t now_ms) {
    if (now_ms - begun_ms_ < kIntervalMs) return;
    if (begun_ms_ != 0) Close(stats);
    begun_ms_ = now_ms;
    begun_blocks_ = stats.blocks;
    begun_misses_ = stats.misses_by_reason;
    begun_copied_ = CopiedBytes(stats);
  }

  // The oldest first; intervals without any request are there, too.
  [[nodiscard]] const std::deque<Point>& points() const { return points_; }

 private:
  static std::array<uint64_t, kCopyLaneCount> CopiedBytes(const CacheStats& stats) {
    return {stats.offload_bytes, stats.onload_bytes, stats.disk_write_bytes, stats.disk_read_bytes,
            stats.neighbour_bytes};
  }
  void Close(const CacheStats& stats) {
    Point point;
    for (int tier = 0; tier < kTierCount; ++tier) {
      point.hit_blocks[tier] = stats.blocks.hit[tier] - begun_blocks_.hit[tier];
    }
    point.cold_blocks = stats.blocks.cold - begun_blocks_.cold;
    point.missed_blocks = stats.blocks.miss - begun_blocks_.miss;
    for (int i = 0; i < kMissReasonCount; ++i) {
      point.misses_by_reason[i] = stats.misses_by_reason[i] - begun_misses_[i];
    }
    const auto copied = CopiedBytes(stats);
    for (int lane = 0; lane < kCopyLaneCount; ++lane) {
      point.copied_bytes[lane] = copied[lane] - begun_copied_[lane];
    }
    points_.push_back(point);
    if (points_.size() > kPoints) points_.pop_front();
  }

  int64_t begun_ms_ = 0;
  CacheStats::Asked begun_blocks_;
  std::array<uint64_t, kMissReasonCount> begun_misses_{};
  std::array<uint64_t, kCopyLaneCount> begun_copied_{};
  std::deque<Point> points_;
};

// A directory of the disk tier.
struct DriveSnapshot {
  std::string directory;
  std::optional<uint32_t> number;  // none: it was left out
  std::string_view state;          // "serving", "failed", "left_out"
  std::string why;                 // empty: it serves
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
};

// A copy without pointers into the daemon: it may be read on any thread, and as long as wanted.
struct MetricsSnapshot {
  // Sessions and pools beyond these are counted, not listed: tenants can make very many.
  static constexpr size_t kMaxListed = 64;

  bool draining = false;
  int64_t uptime_ms = 0;
  CacheSums stats;
  CacheGauges gauges;
  struct Pool {
    PoolGauges gauges;
    std::string tenant, model_hex, model_name;
  };
  std::vector<Pool> pools;  // of gauges.pools those that hold the most bytes, by id
  std::vector<ModelUse> models;
  struct Device {
    std::string kind, name, uuid;
  };
  std::vector<Device> devices;             // of gauges.devices
  uint64_t unreachable_counter_pages = 0;  // of all devices
  ServerCounters server;
  EventReport events;
  AttentionReports attention;
  size_t session_count = 0;
  size_t quarantined_sessions = 0;
  std::vector<Session::Summary> sessions;
  std::vector<KeptMemories::Entry> kept_memories;
  KeptMemories::Counters kept_memory_events;
  DescriptorStore::Holder holder;  // of what outlives the daemon
  std::vector<DescriptorStore::Entry> held;
  std::string host_adoption;  // "adopted", or why host memory began empty
  std::vector<KeptPools::Outcome> pool_adoptions;
  size_t former_clients = 0;
  bool disk_enabled = false;
  bool disk_degraded = false;
  std::vector<DriveSnapshot> drives;
  bool index_rebuilt = false;
  uint64_t write_budget_bytes = 0;  // a day; 0: no limit
  LoopDelayHistogram loop_delays{&kLoopDelayBoundsUs};
  LoopDelayHistogram event_times{&kLoopDelayBoundsUs};
  HitHistory history;
  // The event loop's time that it cost to take this snapshot.
  int64_t taken_in_us = 0;
};

// Parts of the daemon that have something to tell. Everything is borrowed, outlives what tells of
// it and belongs to the event loop.
struct MetricsSources {
  const Config* config = nullptr;  // in effect
  const EventLoop* loop = nullptr;
  const LoopLag* loop_lag = nullptr;
  const HitHistory* history = nullptr;
  const Clock* clock = nullptr;
  int64_t started_ms = 0;  // monotonic
  const DiskStartFacts* disk = nullptr;
  const std::vector<OpenedDevice>* devices = nullptr;  // by DeviceIndex
  const Cache* cache = nullptr;
  const ModelRegistry* models = nullptr;
  const ServerCounters* counters = nullptr;
  const Server* server = nullptr;
  const AttentionService* attention = nullptr;  // null: off
  const EventReportSource* events = nullptr;    // null: off
  const KeptMemories* kept_memories = nullptr;
  // Memory that outlives the daemon, and memory that was taken over from an earlier one.
  const DescriptorStore* descriptors = nullptr;
  const MappedArena* arena = nullptr;
  const KeptPools* kept_pools = nullptr;
  const FormerClients* former_clients = nullptr;
};

// Event loop only. Takes time in the number of pools and sessions, not of blocks.
[[nodiscard]] MetricsSnapshot TakeMetricsSnapshot(const MetricsSources& sources);

}  // namespace kvtier
