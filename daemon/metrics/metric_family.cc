// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metric_family.h"

#include <fmt/format.h>

#include <array>

namespace kvtier {
namespace {

std::string_view UnitOf(std::string_view name) {
  static constexpr std::array<std::string_view, 5> kUnits = {"blocks", "bytes", "ratio", "seconds",
                                                             "tokens"};
  for (const std::string_view unit : kUnits) {
    if (name.ends_with(unit) && name.size() > unit.size() &&
        name[name.size() - unit.size() - 1] == '_') {
      return unit;
    }
  }
  return {};
}

}  // namespace

MetricFamily& MetricFamily::Add(MetricLabels labels, double value) {
  const std::string_view suffix = type == MetricType::kCounter ? "_total"
                                  : type == MetricType::kInfo  ? "_info"
                                                               : "";
  samples.push_back({suffix, std::move(labels), value});
  return *this;
}

MetricFamily& MetricFamily::AddHistogram(const MetricLabels& labels,
                                         std::span<const int64_t> bounds_us,
                                         std::span<const uint64_t> counts, uint64_t sum_us) {
  uint64_t cumulative = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    cumulative += counts[i];
    MetricLabels bucket = labels;
    bucket.emplace_back("le", i < bounds_us.size()
                                  ? fmt::format("{}", static_cast<double>(bounds_us[i]) / 1e6)
                                  : "+Inf");
    samples.push_back({"_bucket", std::move(bucket), static_cast<double>(cumulative)});
  }
  samples.push_back({"_count", labels, static_cast<double>(cumulative)});
  samples.push_back({"_sum", labels, static_cast<double>(sum_us) / 1e6});
  return *this;
}

MetricFamily& MetricFamilies::Counter(std::string name, std::string_view help) {
  return Make(std::move(name), MetricType::kCounter, help);
}
MetricFamily& MetricFamilies::Gauge(std::string name, std::string_view help) {
  return Make(std::move(name), MetricType::kGauge, help);
}
MetricFamily& MetricFamilies::Histogram(std::string name, std::string_view help) {
  return Make(std::move(name), MetricType::kHistogram, help);
}
MetricFamily& MetricFamilies::Info(std::string name, std::string_view help) {
  return Make(std::move(name), MetricType::kInfo, help);
}

MetricFamily& MetricFamilies::Make(std::string name, MetricType type, std::string_view help) {
  MetricFamily& family = families_.emplace_back();
  family.name = std::move(name);
  family.type = type;
  family.unit = UnitOf(family.name);
  family.help = help;
  return family;
}

}  // namespace kvtier
