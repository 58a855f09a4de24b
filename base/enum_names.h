// SPDX-License-Identifier: Apache-2.0
// Enumerations whose values have names, in labels of metrics, JSON and reports: a value, its name
// and its meaning stand in one row of one list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvtier {

struct EnumText {
  std::string_view name;
  std::string_view meaning;
};

}  // namespace kvtier

// Declares `enum class Enum` with the values of LIST(X), which has a row X(enumerator, name,
// meaning) for each of them, numbered from 0; kEnumTexts, an EnumText for each; kEnumCount, how
// many there are; and EnumName(), the name of one, "unknown" for a number that is no value. Within
// the namespace kvtier.
#define KVT_NAMED_ENUM(Enum, LIST)                                                         \
  enum class Enum : uint8_t { LIST(KVT_ENUMERATOR_OF_ROW) };                               \
  inline constexpr auto k##Enum##Texts = std::to_array<EnumText>({LIST(KVT_TEXT_OF_ROW)}); \
  inline constexpr int k##Enum##Count = k##Enum##Texts.size();                             \
  [[nodiscard]] constexpr std::string_view Enum##Name(Enum value) {                        \
    const auto index = static_cast<size_t>(value);                                         \
    return index < k##Enum##Texts.size() ? k##Enum##Texts[index].name : "unknown";         \
  }
#define KVT_ENUMERATOR_OF_ROW(enumerator, name, meaning) enumerator,
#define KVT_TEXT_OF_ROW(enumerator, name, meaning) {name, meaning},
