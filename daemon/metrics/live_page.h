// SPDX-License-Identifier: Apache-2.0
// The page for people who would rather look: one file, no requests but for its data.
#pragma once

#include <string_view>

namespace kvtier {

// daemon/metrics/live_page.html, put into the program when it is built.
[[nodiscard]] std::string_view LivePageHtml();

}  // namespace kvtier
