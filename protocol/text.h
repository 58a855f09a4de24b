// SPDX-License-Identifier: Apache-2.0
// Texts that came over a socket and go into logs and JSON.
#pragma once

#include <cstddef>
#include <string_view>

namespace kvtier {

// Valid UTF-8 without control characters.
[[nodiscard]] bool IsPlainText(std::string_view text);

// The longest prefix of at most `max_bytes` that does not end within a UTF-8 sequence.
[[nodiscard]] std::string_view CutText(std::string_view text, size_t max_bytes);

}  // namespace kvtier
