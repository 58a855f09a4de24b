// docs/METRICS.md, written from the metrics themselves.
#pragma once

#include <string>

namespace kvtier {

[[nodiscard]] std::string MetricsReferenceMarkdown();

}  // namespace kvtier
