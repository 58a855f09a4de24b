// SPDX-License-Identifier: Apache-2.0
// Spans of time as people write them: "500ms", "30s", "10min", "24h", "7d".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvtier {

inline constexpr int64_t kSecondMs = 1000;
inline constexpr int64_t kMinuteMs = 60 * kSecondMs;
inline constexpr int64_t kHourMs = 60 * kMinuteMs;
inline constexpr int64_t kDayMs = 24 * kHourMs;

// A whole number and a unit: ms, s, min, h or d. Returns milliseconds. A number without a unit is
// refused. Errors: kInvalidArgument "bad_duration".
[[nodiscard]] Result<int64_t> ParseDuration(std::string_view text);

// The same span in the largest unit that expresses it exactly; ParseDuration's inverse.
// REQUIRES: milliseconds >= 0.
[[nodiscard]] std::string FormatDuration(int64_t milliseconds);

}  // namespace kvtier
