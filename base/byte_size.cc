// SPDX-License-Identifier: Apache-2.0
#include "base/byte_size.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace kvtier {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array kUnits = {
    Unit{"B", 1},        Unit{"KiB", 0x1p10}, Unit{"MiB", 0x1p20},
    Unit{"GiB", 0x1p30}, Unit{"TiB", 0x1p40}, Unit{"kB", 1e3},
    Unit{"MB", 1e6},     Unit{"GB", 1e9},     Unit{"TB", 1e12},
};

tl::unexpected<Error> BadByteSize(std::string_view text) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_byte_size",
                   fmt::format("\"{}\" is not a size such as 256MiB, 1.5TiB or 4GB", text));
}

}  // namespace

Result<uint64_t> ParseByteSize(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !(number >= 0)) return BadByteSize(text);
  std::string_view unit_name(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit_name.empty() && unit_name.front() == ' ') unit_name.remove_prefix(1);
  for (const Unit& unit : kUnits) {
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
  while (unit < 4 && static_cast<double>(bytes) >= kUnits[unit + 1].bytes) ++unit;
  return fmt::format("{:.1f} {}", static_cast<double>(bytes) / kUnits[unit].bytes,
                     kUnits[unit].name);
}

}  // namespace kvtier
