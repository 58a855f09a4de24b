// SPDX-License-Identifier: Apache-2.0
// docs/METRICS.md, written from the metrics themselves.
#pragma once

#include <string>

namespace kvtier {

[[nodiscard]] std::string MetricsReferenceMarkdown();

}  // namespace kvtier
