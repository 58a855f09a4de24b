// SPDX-License-Identifier: Apache-2.0
// Strong<Tag, Rep>: an integer that cannot be mistaken for another. Ordered and hashable; converts
// only on request (`value`).
#pragma once

#include <compare>
#include <cstddef>
#include <functional>

namespace kvtier {

template <typename Tag, typename Rep>
struct Strong {
  using RepType = Rep;
  Rep value{};

  constexpr Strong() = default;
  constexpr explicit Strong(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;
};

}  // namespace kvtier

template <typename Tag, typename Rep>
struct std::hash<kvtier::Strong<Tag, Rep>> {
  size_t operator()(const kvtier::Strong<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
