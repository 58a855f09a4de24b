// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <thread>

#include "base/units.h"
#include "tools/bench/bench.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

std::string_view TierName(Tier tier) { return tier == Tier::kHost ? "host" : "disk"; }

std::string SourceName(const OnloadResult& result) {
  const std::string drives =
      result.drives > 1 ? fmt::format(", {} drives", result.drives) : std::string();
  return std::string(TierName(result.tier)) + drives +
         (result.host_unwritten ? ", host unwritten" : "");
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

json::object Machine() {
  utsname system{};
  ::uname(&system);
  return {{"cpu", CpuModel()},
          {"cores", std::thread::hardware_concurrency()},
          {"kernel", system.release}};
}

std::string OnloadTable(const std::vector<OnloadResult>& results) {
  using enum Table::Align;
  Table table({{"onload from", kLeft},
               {"block"},
               {"blocks"},
               {"GB/s"},
               {"ceiling"},
               {"ratio"},
               {"CPU us/block"},
               {"loop us/block"},
               {"loop"}});
  for (const OnloadResult& result : results) {
    table.AddRow(
        {SourceName(result), FormatByteSize(result.block_bytes), FormatCount(result.blocks),
         fmt::format("{:.2f}", result.gbps), fmt::format("{:.2f}", result.ceiling_gbps),
         fmt::format("{:.1f} %", 100 * result.ratio), fmt::format("{:.1f}", result.cpu_us),
         fmt::format("{:.2f}", result.loop_us), fmt::format("{:.0f} %", 100 * result.loop_share)});
  }
  // The ratio is not the quotient of the two columns before it, which are medians of their own.
  return table.Render() + "ratio: the median over pairs of a run and the ceiling beside it\n";
}

std::string AcquireTable(const std::vector<AcquireResult>& results) {
  Table table({{"acquire, hashes"}, {"p50 us"}, {"p99 us"}, {"ping p50 us"}, {"over ping us"}});
  for (const AcquireResult& result : results) {
    table.AddRow({FormatCount(result.hashes), fmt::format("{:.1f}", result.p50_us),
                  fmt::format("{:.1f}", result.p99_us), fmt::format("{:.1f}", result.ping_p50_us),
                  fmt::format("{:.1f}", result.p50_us - result.ping_p50_us)});
  }
  return table.Render();
}

std::string StartTable(const std::vector<StartResult>& results) {
  Table table({{"start, entries"}, {"seconds"}, {"index B/entry"}, {"resident B/entry"}});
  for (const StartResult& result : results) {
    table.AddRow({FormatCount(result.entries), fmt::format("{:.2f}", result.seconds),
                  fmt::format("{:.0f}", result.index_bytes_per_entry),
                  fmt::format("{:.0f}", result.resident_bytes_per_entry)});
  }
  return table.Render();
}

}  // namespace

double Median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const size_t middle = samples.size() / 2;
  std::ranges::sort(samples);
  return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

std::string ToJson(const BenchResults& results) {
  json::array onload, acquire, start;
  for (const OnloadResult& result : results.onload) {
    onload.push_back({{"tier", TierName(result.tier)},
                      {"block_bytes", result.block_bytes},
                      {"blocks", result.blocks},
                      {"gbps", result.gbps},
                      {"ceiling_gbps", result.ceiling_gbps},
                      {"ratio", result.ratio},
                      {"cpu_us_per_block", result.cpu_us},
                      {"loop_us_per_block", result.loop_us},
                      {"loop_share", result.loop_share},
                      {"drives", result.drives},
                      {"host_unwritten", result.host_unwritten}});
  }
  for (const AcquireResult& result : results.acquire) {
    acquire.push_back({{"hashes", result.hashes},
                       {"p50_us", result.p50_us},
                       {"p99_us", result.p99_us},
                       {"ping_p50_us", result.ping_p50_us}});
  }
  for (const StartResult& result : results.start) {
    start.push_back({{"entries", result.entries},
                     {"seconds", result.seconds},
                     {"index_bytes_per_entry", result.index_bytes_per_entry},
                     {"resident_bytes_per_entry", result.resident_bytes_per_entry}});
  }
  return json::serialize(json::object{{"schema", "kvtier.bench/1"},
                                      {"machine", Machine()},
                                      {"onload", std::move(onload)},
                                      {"acquire", std::move(acquire)},
                                      {"start", std::move(start)}});
}

std::string ToText(const BenchResults& results) {
  std::string text;
  const auto add = [&text](bool any, const std::string& table) {
    if (any) text += (text.empty() ? "" : "\n") + table;
  };
  add(!results.onload.empty(), OnloadTable(results.onload));
  add(!results.acquire.empty(), AcquireTable(results.acquire));
  add(!results.start.empty(), StartTable(results.start));
  return text;
}

}  // namespace kvtier
