// SPDX-License-Identifier: Apache-2.0
// Byte counts and spans of time as people write them in configurations and on command lines:
// "256MiB", "1.5 TiB", "4GB"; "500ms", "30s", "10min", "24h", "7d".
//
// A number without a unit is refused everywhere, because its reader would have to guess.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvtier {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// A number (integer or decimal fraction) and a unit: B, KiB, MiB, GiB, TiB, or the decimal kB, MB,
// GB, TB; at most one space between them. Errors: kInvalidArgument "bad_byte_size".
[[nodiscard]] Result<uint64_t> ParseByteSize(std::string_view text);

// The shortest of "%.1f UNIT" with a binary unit: "64.0 KiB", "1.2 GiB".
[[nodiscard]] std::string FormatByteSize(uint64_t bytes);

inline constexpr int64_t kSecondMs = 1000;
inline constexpr int64_t kMinuteMs = 60 * kSecondMs;
inline constexpr int64_t kHourMs = 60 * kMinuteMs;
inline constexpr int64_t kDayMs = 24 * kHourMs;

// A whole number and a unit: ms, s, min, h or d. Returns milliseconds. Errors: kInvalidArgument
// "bad_duration".
[[nodiscard]] Result<int64_t> ParseDuration(std::string_view text);

// The same span in the largest unit that expresses it exactly; ParseDuration's inverse.
// REQUIRES: milliseconds >= 0.
[[nodiscard]] std::string FormatDuration(int64_t milliseconds);

}  // namespace kvtier
