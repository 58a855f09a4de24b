// SPDX-License-Identifier: Apache-2.0
// Aligned columns of text, for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvtier {

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: as many cells as columns.
  void AddRow(std::vector<std::string> cells);

  // Every column as wide as its widest cell, two spaces between columns, no trailing spaces. Widths
  // count code points.
  [[nodiscard]] std::string Render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// 1234567 as "1,234,567".
[[nodiscard]] std::string FormatCount(uint64_t count);

// At most seven characters: "999,999", "1.23M", "45.6G".
[[nodiscard]] std::string FormatCompactCount(uint64_t count);

// 12345 as "12.3 s", 7'440'000 as "2 h 4 min".
[[nodiscard]] std::string FormatElapsed(int64_t milliseconds);

// At most four characters: "45s", "12m", "3h", "2d".
[[nodiscard]] std::string FormatAge(int64_t seconds);

}  // namespace kvtier
