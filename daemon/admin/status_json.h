// SPDX-License-Identifier: Apache-2.0
// What `kvtierctl status` shows, as a JSON document. Its members only ever grow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/app/device_opening.h"
#include "daemon/config/config.h"
#include "daemon/session/server.h"
#include "tiers/cache.h"

namespace kvtier {

inline constexpr std::string_view kStatusSchema = "kvtier.status/1";

// How the disk tier came up.
struct DiskStartFacts {
  bool enabled = false;
  std::string directory;
  bool degraded = false;           // smaller than configured
  std::vector<std::string> notes;  // for people
  std::string index_found;         // "good", "new", or why the index was rebuilt
  bool index_rebuilt = false;
  double index_seconds = 0;  // it took to load or rebuild it
};

// Where the document's facts come from; borrowed.
struct StatusSource {
  const Config* config = nullptr;
  const Cache* cache = nullptr;
  const std::vector<OpenedDevice>* devices = nullptr;  // those of `cache`, by DeviceIndex
  const Server* server = nullptr;
  const AttentionService* attention = nullptr;
  const DiskStartFacts* disk = nullptr;
  int64_t uptime_ms = 0;
  bool draining = false;
};

[[nodiscard]] std::string StatusJson(const StatusSource& source);
// {"schema":"kvtier.stats/1","stats":{...}}: the counters alone.
[[nodiscard]] std::string StatsJson(const StatusSource& source);
// {"schema":"kvtier.config/1","section":{"key":value as in the file,...},...}.
[[nodiscard]] std::string ConfigJson(const Config& config);

}  // namespace kvtier
