// SPDX-License-Identifier: Apache-2.0
// The program's version, from the build.
#pragma once

#include <string_view>

namespace kvtier {

[[nodiscard]] std::string_view Version();

}  // namespace kvtier
