// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <string>

#include "base/units.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

// Counts in full, measured values to four digits. A JSON number as well.
std::string NumberText(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  return whole ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string BoundText(double ceiling, double value) {
  return ceiling > 0 ? NumberText(value) : "null";
}

}  // namespace

std::string SizeName(uint64_t bytes) {
  if (bytes % kGiB == 0) return fmt::format("{}GiB", bytes / kGiB);
  if (bytes % kMiB == 0) return fmt::format("{}MiB", bytes / kMiB);
  return fmt::format("{}KiB", bytes / kKiB);
}

GpuResult MakeGpuResult(std::string name, double value, std::string unit, double ceiling) {
  return {std::move(name), value, std::move(unit), ceiling, ceiling > 0 ? value / ceiling : 0};
}

GpuResult MakeGpuFault(std::string name, uint64_t count, std::string unit) {
  GpuResult result = MakeGpuResult(std::move(name), static_cast<double>(count), std::move(unit), 0);
  result.fault = true;
  return result;
}

std::string GpuResultsText(const GpuResults& results) {
  using enum Table::Align;
  Table table({{"", kLeft}, {"value"}, {"unit", kLeft}, {"ceiling"}, {"ratio"}});
  for (const GpuResult& result : results) {
    const bool bounded = result.ceiling > 0;
    table.AddRow({result.name, NumberText(result.value), result.unit,
                  bounded ? NumberText(result.ceiling) : "-",
                  bounded ? fmt::format("{:.3f}", result.ratio) : "-"});
  }
  return table.Render();
}

std::string GpuResultsJson(const GpuResults& results, const std::string& commit,
                           const std::string& device) {
  // One line of the file for one of the table.
  std::string lines;
  for (const GpuResult& result : results) {
    lines += fmt::format(R"({}  {{"name":{},"value":{},"unit":{},"ceiling":{},"ratio":{}}})",
                         lines.empty() ? "\n" : ",\n", json::serialize(json::string(result.name)),
                         NumberText(result.value), json::serialize(json::string(result.unit)),
                         BoundText(result.ceiling, result.ceiling),
                         BoundText(result.ceiling, result.ratio));
  }
  return fmt::format(R"({{"schema":"kvtier.gpu-bench/1","commit":{},"device":{},"results":[{}
]}})",
                     json::serialize(json::string(commit)), json::serialize(json::string(device)),
                     lines);
}

}  // namespace kvtier
