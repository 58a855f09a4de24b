// SPDX-License-Identifier: Apache-2.0
// How much memory this program takes at once: its operator new counts.
#pragma once

#include <cstddef>

namespace kvtier {

// The largest number of bytes that one call of operator new has asked for since the last call of
// this function. Any thread.
[[nodiscard]] size_t TakeLargestPiece();

}  // namespace kvtier
