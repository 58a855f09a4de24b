#include <fmt/format.h>

#include <boost/json.hpp>
#include <string>

#include "base/byte_size.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

double Rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

}  // namespace

std::string SizeName(uint64_t bytes) {
  if (bytes % kGiB == 0) return fmt::format("{}GiB", bytes / kGiB);
  if (bytes % kMiB == 0) return fmt::format("{}MiB", bytes / kMiB);
  return fmt::format("{}KiB", bytes / kKiB);
}

GpuResult MakeGpuResult(std::string name, double value, std::string unit, double ceiling) {
  return {std::move(name), value, std::move(unit), ceiling, ceiling > 0 ? value / ceiling : 0};
}

std::string GpuResultsText(const GpuResults& results) {
  using enum Table::Align;
  Table table({{"", kLeft}, {"value"}, {"unit", kLeft}, {"ceiling"}, {"ratio"}});
  for (const GpuResult& result : results) {
    const bool bounded = result.ceiling > 0;
    table.AddRow({result.name, fmt::format("{:.4g}", result.value), result.unit,
                  bounded ? fmt::format("{:.4g}", result.ceiling) : "-",
                  bounded ? fmt::format("{:.3f}", result.ratio) : "-"});
  }
  return table.Render();
}

std::string GpuResultsJson(const GpuResults& results, const std::string& commit,
                           const std::string& device) {
  json::array lines;
  for (const GpuResult& result : results) {
    json::object line{
        {"name", result.name}, {"value", Rounded(result.value)}, {"unit", result.unit}};
    line["ceiling"] = result.ceiling > 0 ? json::value(Rounded(result.ceiling)) : nullptr;
    line["ratio"] = result.ceiling > 0 ? json::value(Rounded(result.ratio)) : nullptr;
    lines.push_back(std::move(line));
  }
  return json::serialize(json::object{{"schema", "kvtier.gpu-bench/1"},
                                      {"commit", commit},
                                      {"device", device},
                                      {"results", std::move(lines)}});
}

}  // namespace kvtier
