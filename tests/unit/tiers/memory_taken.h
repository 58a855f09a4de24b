// SPDX-License-Identifier: Apache-2.0
// How much memory this program takes: its operator new counts. As a measure of work it is the same
// on any machine, however busy.
#pragma once

#include <cstddef>

namespace kvtier {

struct MemoryTaken {
  size_t bytes = 0;    // of all calls of operator new
  size_t largest = 0;  // of one call
};

// The memory that any thread has taken since the last call of this function.
[[nodiscard]] MemoryTaken TakeMemoryTaken();

}  // namespace kvtier
