// SPDX-License-Identifier: Apache-2.0
#include "tools/support/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"

namespace kvtier {
namespace {

constexpr std::string_view kGap = "  ";

size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  KVT_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = Width(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, Width(row[i]));
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](auto cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string padding(widths[i] - Width(cell), ' ');
      if (i > 0) line += kGap;
      line += columns_[i].align == Align::kLeft ? cell + padding : padding + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  add_line([this](size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) {
    add_line([&row](size_t i) -> const std::string& { return row[i]; });
  }
  return text;
}

std::string FormatCount(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t end = text.size(); end > 3; end -= 3) text.insert(end - 3, 1, ',');
  return text;
}

std::string FormatCompactCount(uint64_t count) {
  if (count < 1'000'000) return FormatCount(count);
  constexpr std::string_view kUnits = "MGTPE";
  auto value = static_cast<double>(count) / 1e6;
  size_t unit = 0;
  // Rounding must not give "1000M".
  while (value >= 999.5) {
    value /= 1e3;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::string FormatElapsed(int64_t milliseconds) {
  const int64_t seconds = milliseconds / 1000;
  if (seconds < 60) return fmt::format("{:.1f} s", static_cast<double>(milliseconds) / 1000);
  const int64_t minutes = seconds / 60;
  if (minutes < 60) return fmt::format("{} min {} s", minutes, seconds % 60);
  const int64_t hours = minutes / 60;
  if (hours < 24) return fmt::format("{} h {} min", hours, minutes % 60);
  return fmt::format("{} d {} h", hours / 24, hours % 24);
}

std::string FormatAge(int64_t seconds) {
  // Clocks may be set back.
  seconds = std::max<int64_t>(seconds, 0);
  if (seconds < 100) return fmt::format("{}s", seconds);
  if (seconds < 100 * 60) return fmt::format("{}m", seconds / 60);
  if (seconds < 100 * 3600) return fmt::format("{}h", seconds / 3600);
  return fmt::format("{}d", seconds / (24 * 3600));
}

}  // namespace kvtier
