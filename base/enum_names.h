// SPDX-License-Identifier: Apache-2.0
// The names of an enum's values as a table, which the compiler checks for gaps.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace kvtier {

// One name for each of kCount values, which follow each other.
template <typename Enum, size_t kCount>
class EnumNames {
 public:
  struct Row {
    Enum value;
    std::string_view name;
  };

  // Does not compile unless the rows are in the order of their values, without a gap: a value that
  // was added to the enum and counted there needs its row here.
  consteval EnumNames(const Row (&rows)[kCount]) : first_(static_cast<size_t>(rows[0].value)) {
    for (size_t i = 0; i < kCount; ++i) {
      if (static_cast<size_t>(rows[i].value) != first_ + i) throw "a row is out of place";
      names_[i] = rows[i].name;
    }
  }

  // Returns "unknown" for a number that is no value of the enum.
  [[nodiscard]] constexpr std::string_view Of(Enum value) const {
    const size_t place = static_cast<size_t>(value) - first_;
    return place < kCount ? names_[place] : "unknown";
  }

 private:
  size_t first_;
  std::array<std::string_view, kCount> names_{};
};

}  // namespace kvtier
