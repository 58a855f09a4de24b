// SPDX-License-Identifier: Apache-2.0
// Metrics as values: families of samples, before they become text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtier {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram, kInfo };

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

// In the order of their making, which is the page's.
class MetricFamilies {
 public:
  // `name` without "_total"; the unit is taken from its last word.
  MetricFamily& Counter(std::string name, std::string_view help);
  MetricFamily& Gauge(std::string name, std::string_view help);
  MetricFamily& Histogram(std::string name, std::string_view help);
  // `name` without "_info".
  MetricFamily& Info(std::string name, std::string_view help);

  [[nodiscard]] const std::vector<MetricFamily>& all() const { return families_; }

 private:
  MetricFamily& Make(std::string name, MetricType type, std::string_view help);

  std::vector<MetricFamily> families_;
};

}  // namespace kvtier
