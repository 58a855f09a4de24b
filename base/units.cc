// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace kvtier {
namespace {

struct ByteUnit {
  std::string_view name;
  double bytes;
};

constexpr std::array kByteUnits = {
    ByteUnit{"B", 1},        ByteUnit{"KiB", 0x1p10}, ByteUnit{"MiB", 0x1p20},
    ByteUnit{"GiB", 0x1p30}, ByteUnit{"TiB", 0x1p40}, ByteUnit{"kB", 1e3},
    ByteUnit{"MB", 1e6},     ByteUnit{"GB", 1e9},     ByteUnit{"TB", 1e12},
};

tl::unexpected<Error> BadByteSize(std::string_view text) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_byte_size",
                   fmt::format("\"{}\" is not a size such as 256MiB, 1.5TiB or 4GB", text));
}

struct TimeUnit {
  std::string_view name;
  int64_t milliseconds;
};
// Largest first.
constexpr std::array<TimeUnit, 5> kTimeUnits = {
    {{"d", kDayMs}, {"h", kHourMs}, {"min", kMinuteMs}, {"s", kSecondMs}, {"ms", 1}}};

tl::unexpected<Error> BadDuration(std::string_view text) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_duration",
                   "\"" + std::string(text) +
                       "\" is not a whole number with a unit (ms, s, min, h, d), as in \"30s\"");
}

}  // namespace

Result<uint64_t> ParseByteSize(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !(number >= 0)) return BadByteSize(text);
  std::string_view unit_name(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit_name.empty() && unit_name.front() == ' ') unit_name.remove_prefix(1);
  for (const ByteUnit& unit : kByteUnits) {
    if (unit.name != unit_name) continue;
    const double bytes = std::round(number * unit.bytes);
    if (bytes >= 0x1p63) return BadByteSize(text);
    return static_cast<uint64_t>(bytes);
  }
  return BadByteSize(text);
}

std::string FormatByteSize(uint64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  size_t unit = 1;
  while (unit < 4 && static_cast<double>(bytes) >= kByteUnits[unit + 1].bytes) ++unit;
  return fmt::format("{:.1f} {}", static_cast<double>(bytes) / kByteUnits[unit].bytes,
                     kByteUnits[unit].name);
}

Result<int64_t> ParseDuration(std::string_view text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [unit_begin, failure] = std::from_chars(text.data(), end, count);
  if (failure != std::errc() || count < 0) return BadDuration(text);
  const char* name = unit_begin;
  while (name != end && *name == ' ') ++name;
  for (const TimeUnit& unit : kTimeUnits) {
    if (std::string_view(name, end) != unit.name) continue;
    if (count > INT64_MAX / unit.milliseconds) return BadDuration(text);
    return count * unit.milliseconds;
  }
  return BadDuration(text);
}

std::string FormatDuration(int64_t milliseconds) {
  KVT_CHECK(milliseconds >= 0);
  if (milliseconds == 0) return "0s";
  for (const TimeUnit& unit : kTimeUnits) {
    if (milliseconds % unit.milliseconds == 0) {
      return std::to_string(milliseconds / unit.milliseconds) + std::string(unit.name);
    }
  }
  return std::to_string(milliseconds) + "ms";
}

}  // namespace kvtier
