// SPDX-License-Identifier: Apache-2.0
// Metrics as text, in the two formats that are asked for.
#pragma once

#include <string>
#include <string_view>

#include "daemon/metrics/metric_family.h"

namespace kvtier {

enum class MetricsFormat : uint8_t {
  kOpenMetrics,  // OpenMetrics 1.0.0
  kPrometheus,   // the Prometheus text format 0.0.4, which older tools read
};

// What an Accept header asks for; kPrometheus unless it names OpenMetrics.
[[nodiscard]] MetricsFormat FormatFor(std::string_view accept_header);
// The Content-Type of a page in `format`.
[[nodiscard]] std::string_view ContentTypeOf(MetricsFormat format);
[[nodiscard]] std::string MetricsText(const MetricFamilies& families, MetricsFormat format);

}  // namespace kvtier
