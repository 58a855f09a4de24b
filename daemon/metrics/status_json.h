// SPDX-License-Identifier: Apache-2.0
// The daemon's state as JSON documents: for `kvtierctl status` (status_json.cc) and for the live
// page (live_json.cc). Figures come from the table of metrics.h; texts, lists of pools, tenants and
// sessions, and states are put together here. Members are only ever added.
//
// The schema's number in each document changes only if a member's meaning does; readers should
// ignore members that they do not know.
#pragma once

#include <string>
#include <string_view>

#include "daemon/metrics/metrics_snapshot.h"

namespace kvtier {

inline constexpr std::string_view kStatusSchema = "kvtier.status/1";
inline constexpr std::string_view kLiveSchema = "kvtier.live/1";

// For root and the daemon's own user: names sessions with their processes. Event loop only.
[[nodiscard]] std::string StatusJson(const MetricsSources& sources);

// Tells less than the status, without processes and users: every process of this machine may read
// it. Any thread; `loop_silent_seconds` is what that thread knows of the loop.
[[nodiscard]] std::string LiveStatusJson(const MetricsSnapshot& snapshot,
                                         double loop_silent_seconds);

// daemon/metrics/live_page.html, the page that shows the latter: one file, put into the program
// when it is built, which loads nothing but its data.
[[nodiscard]] std::string_view LivePageHtml();

}  // namespace kvtier
