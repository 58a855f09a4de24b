// SPDX-License-Identifier: Apache-2.0
// What `kvtierctl status` shows, as a JSON document. Its members only ever grow. Event loop only.
#pragma once

#include <string>
#include <string_view>

#include "daemon/runtime/service_context.h"

namespace kvtier {

inline constexpr std::string_view kStatusSchema = "kvtier.status/1";

[[nodiscard]] std::string StatusJson(const ServiceContext& context);
// {"schema":"kvtier.stats/1","stats":{...}}: the counters alone.
[[nodiscard]] std::string StatsJson(const ServiceContext& context);
// {"schema":"kvtier.config/1","section":{"key":value as in the file,...},...}.
[[nodiscard]] std::string ConfigJson(const Config& config);

}  // namespace kvtier
