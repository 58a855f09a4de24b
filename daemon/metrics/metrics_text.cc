// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace kvtier {
namespace {

// OpenMetrics requires that a family with a unit has it as the last word of its name; so the name
// is enough to know the unit.
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

// The older format knows no infos: they are gauges there, of value 1.
std::string_view TypeName(MetricType type, MetricsFormat format) {
  const bool unknown = type == MetricType::kInfo && format != MetricsFormat::kOpenMetrics;
  return MetricTypeName(unknown ? MetricType::kGauge : type);
}

// The older format gives a family its samples' full name.
std::string NameIn(const MetricFamily& family, MetricsFormat format) {
  if (format == MetricsFormat::kOpenMetrics) return family.name;
  return family.name + std::string(family.Suffix());
}

// Backslash, quote and line feed are what both formats call for. A name that is not escaped could
// add samples to the page.
void AppendEscaped(std::string_view text, std::string* page) {
  for (const char c : text) {
    if (c == '\\' || c == '"') page->push_back('\\');
    if (c == '\n') {
      *page += "\\n";
    } else {
      page->push_back(c);
    }
  }
}

void AppendValue(double value, std::string* page) {
  if (std::isinf(value)) {
    *page += value > 0 ? "+Inf" : "-Inf";
  } else {
    *page += fmt::format("{}", value);
  }
}

void AppendSample(const MetricFamily& family, const MetricSample& sample, std::string* page) {
  *page += family.name;
  *page += sample.suffix;
  char separator = '{';
  for (const auto& [name, value] : sample.labels) {
    page->push_back(separator);
    *page += name;
    *page += "=\"";
    AppendEscaped(value, page);
    page->push_back('"');
    separator = ',';
  }
  *page += sample.labels.empty() ? " " : "} ";
  AppendValue(sample.value, page);
  page->push_back('\n');
}

}  // namespace

std::string_view MetricTypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
    case MetricType::kInfo:
      return "info";
  }
  return "unknown";
}

std::string_view MetricFamily::Suffix() const {
  if (type == MetricType::kCounter) return "_total";
  return type == MetricType::kInfo ? "_info" : "";
}

MetricFamily& MetricFamily::Add(MetricLabels labels, double value) {
  samples.push_back({Suffix(), std::move(labels), value});
  return *this;
}

MetricFamily& MetricFamily::AddHistogram(const MetricLabels& labels,
                                         std::span<const int64_t> bounds_us,
                                         std::span<const uint64_t> counts, uint64_t sum_us) {
  // Buckets of the formats are cumulative, those of the histogram are not.
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

MetricFamily& MetricFamilies::Make(std::string_view name, MetricType type, std::string_view help) {
  return families_.emplace_back(
      MetricFamily{.name = std::string(name), .type = type, .unit = UnitOf(name), .help = help});
}

MetricsFormat FormatFor(std::string_view accept_header) {
  return accept_header.find("application/openmetrics-text") == std::string_view::npos
             ? MetricsFormat::kPrometheus
             : MetricsFormat::kOpenMetrics;
}

std::string_view ContentTypeOf(MetricsFormat format) {
  return format == MetricsFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::string MetricsText(const MetricFamilies& families, MetricsFormat format) {
  std::string page;
  for (const MetricFamily& family : families.all()) {
    const std::string name = NameIn(family, format);
    page += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, family.help, name,
                        TypeName(family.type, format));
    if (format == MetricsFormat::kOpenMetrics && !family.unit.empty()) {
      page += fmt::format("# UNIT {} {}\n", name, family.unit);
    }
    for (const MetricSample& sample : family.samples) AppendSample(family, sample, &page);
  }
  if (format == MetricsFormat::kOpenMetrics) page += "# EOF\n";
  return page;
}

}  // namespace kvtier
