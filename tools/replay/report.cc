// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvtier {
namespace {

std::string ToJson(const HitCounts& counts) {
  return fmt::format(R"({{"asked":{},"pool":{},"host":{},"disk":{},"miss":{}}})", counts.asked,
                     counts.hit[0], counts.hit[1], counts.hit[2], counts.miss);
}

}  // namespace

void HitCounts::Add(const HitCounts& other) {
  asked += other.asked;
  for (int tier = 0; tier < kTierCount; ++tier) hit[tier] += other.hit[tier];
  miss += other.miss;
}

void OnloadTime::Add(const OnloadTime& other) {
  bytes += other.bytes;
  seconds += other.seconds;
}

double OnloadTime::GigabytesPerSecond() const {
  return seconds > 0 ? static_cast<double>(bytes) / 1e9 / seconds : 0;
}

void ReplayReport::Add(const ReplayReport& other) {
  requests += other.requests;
  blocks.Add(other.blocks);
  tokens.Add(other.tokens);
  wrong_blocks += other.wrong_blocks;
  acquire_us.insert(acquire_us.end(), other.acquire_us.begin(), other.acquire_us.end());
  for (int tier = 0; tier < kTierCount; ++tier) onload[tier].Add(other.onload[tier]);
  seconds = std::max(seconds, other.seconds);
  requests_without_daemon += other.requests_without_daemon;
  requests_without_room += other.requests_without_room;
  blocks_lost_loading += other.blocks_lost_loading;
  blocks_committed_twice += other.blocks_committed_twice;
  errors += other.errors;
}

bool ReplayReport::Complete() const {
  return requests_without_daemon + requests_without_room + blocks_lost_loading + errors == 0;
}

std::string ReplayReport::ToJson() const {
  std::vector<double> samples = acquire_us;
  return fmt::format(
      R"({{"schema":"kvtier.replay/1","requests":{},"blocks":{},"tokens":{},"wrong_blocks":{},)"
      R"("acquire_us":{{"p50":{:.1f},"p99":{:.1f}}},"onload_gbps":{{"host":{:.3f},"disk":{:.3f}}},)"
      R"("seconds":{:.3f}}})",
      requests, kvtier::ToJson(blocks), kvtier::ToJson(tokens), wrong_blocks,
      Percentile(samples, 0.50), Percentile(samples, 0.99),
      onload[static_cast<int>(Tier::kHost)].GigabytesPerSecond(),
      onload[static_cast<int>(Tier::kDisk)].GigabytesPerSecond(), seconds);
}

double Percentile(std::span<double> samples, double share) {
  if (samples.empty()) return 0;
  const auto count = static_cast<double>(samples.size());
  const double rank = std::clamp(std::ceil(share * count), 1.0, count);
  const auto nth = samples.begin() + static_cast<ptrdiff_t>(rank) - 1;
  std::nth_element(samples.begin(), nth, samples.end());
  return *nth;
}

}  // namespace kvtier
