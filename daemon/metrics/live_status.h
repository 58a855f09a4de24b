// SPDX-License-Identifier: Apache-2.0
// What the live page shows, as JSON: {"schema":"kvtier.live/1",...}. Its members only ever grow.
#pragma once

#include <string>
#include <string_view>

#include "daemon/metrics/metrics_snapshot.h"

namespace kvtier {

inline constexpr std::string_view kLiveSchema = "kvtier.live/1";

// Any thread. Tells less than `kvtierctl status`: whoever may use this machine may read it.
[[nodiscard]] std::string LiveStatusJson(const MetricsSnapshot& snapshot,
                                         double loop_silent_seconds);

}  // namespace kvtier
