// SPDX-License-Identifier: Apache-2.0
// Metrics as values, families of samples, and as text in the two formats that are asked for.
//
// Pure; any thread. Names and help texts are constants of the program and are viewed, not copied;
// values of labels may come from the configuration and are escaped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtier {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram, kInfo };
// As OpenMetrics calls it: "counter", "gauge", "histogram", "info".
[[nodiscard]] std::string_view MetricTypeName(MetricType type);

using MetricLabels = std::vector<std::pair<std::string_view, std::string>>;

struct MetricSample {
  std::string_view suffix;  // after the family's name: "_total", "_bucket", ...
  MetricLabels labels;
  double value = 0;
};

struct MetricFamily {
  std::string name;  // without the samples' suffixes
  MetricType type = MetricType::kGauge;
  std::string_view unit;  // the last word of the name, or nothing
  std::string_view help;  // one sentence
  std::vector<MetricSample> samples;

  // The samples' names end in it, after the family's: "_total", "_info" or nothing.
  [[nodiscard]] std::string_view Suffix() const;
  // A sample of a counter, gauge or info.
  MetricFamily& Add(MetricLabels labels, double value);
  MetricFamily& Add(double value) { return Add({}, value); }
  MetricFamily& Add(MetricLabels labels, uint64_t value) {
    return Add(std::move(labels), static_cast<double>(value));
  }
  MetricFamily& Add(uint64_t value) { return Add({}, static_cast<double>(value)); }
  // All samples of a histogram: cumulative classes, count and sum. `counts` has one class more than
  // there are bounds.
  MetricFamily& AddHistogram(const MetricLabels& labels, std::span<const int64_t> bounds_us,
                             std::span<const uint64_t> counts, uint64_t sum_us);
};

// Families in the order in which they were made, which is the page's.
class MetricFamilies {
 public:
  // `name` without the samples' suffixes; the unit is taken from its last word. The returned family
  // is the caller's to fill until the next is made.
  MetricFamily& Make(std::string_view name, MetricType type, std::string_view help);
  [[nodiscard]] const std::vector<MetricFamily>& all() const { return families_; }

 private:
  std::vector<MetricFamily> families_;
};

enum class MetricsFormat : uint8_t {
  kOpenMetrics,  // OpenMetrics 1.0.0
  kPrometheus,   // the Prometheus text format 0.0.4, which older tools read
};

// The format that an Accept header asks for; kPrometheus unless it names OpenMetrics.
[[nodiscard]] MetricsFormat FormatFor(std::string_view accept_header);
// The Content-Type of a page in `format`.
[[nodiscard]] std::string_view ContentTypeOf(MetricsFormat format);
[[nodiscard]] std::string MetricsText(const MetricFamilies& families, MetricsFormat format);

}  // namespace kvtier
