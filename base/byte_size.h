// SPDX-License-Identifier: Apache-2.0
// Byte counts as people write them: "256MiB", "1.5 TiB", "4GB".
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
// GB, TB. A number without a unit is refused, so that nobody has to guess. Errors:
// kInvalidArgument "bad_byte_size".
[[nodiscard]] Result<uint64_t> ParseByteSize(std::string_view text);

// The shortest of "%.1f UNIT" with a binary unit: "64.0 KiB", "1.2 GiB".
[[nodiscard]] std::string FormatByteSize(uint64_t bytes);

}  // namespace kvtier
