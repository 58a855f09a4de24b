// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/duration.h"

#include <array>
#include <charconv>

#include "base/check.h"

namespace kvtier {
namespace {

struct Unit {
  std::string_view name;
  int64_t milliseconds;
};
// Largest first.
constexpr std::array<Unit, 5> kUnits = {
    {{"d", kDayMs}, {"h", kHourMs}, {"min", kMinuteMs}, {"s", kSecondMs}, {"ms", 1}}};

tl::unexpected<Error> BadDuration(std::string_view text) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_duration",
                   "\"" + std::string(text) +
                       "\" is not a whole number with a unit (ms, s, min, h, d), as in \"30s\"");
}

}  // namespace

Result<int64_t> ParseDuration(std::string_view text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [unit_begin, failure] = std::from_chars(text.data(), end, count);
  if (failure != std::errc() || count < 0) return BadDuration(text);
  const char* name = unit_begin;
  while (name != end && *name == ' ') ++name;
  for (const Unit& unit : kUnits) {
    if (std::string_view(name, end) != unit.name) continue;
    if (count > INT64_MAX / unit.milliseconds) return BadDuration(text);
    return count * unit.milliseconds;
  }
  return BadDuration(text);
}

std::string FormatDuration(int64_t milliseconds) {
  KVT_CHECK(milliseconds >= 0);
  if (milliseconds == 0) return "0s";
  for (const Unit& unit : kUnits) {
    if (milliseconds % unit.milliseconds == 0) {
      return std::to_string(milliseconds / unit.milliseconds) + std::string(unit.name);
    }
  }
  return std::to_string(milliseconds) + "ms";
}

}  // namespace kvtier
