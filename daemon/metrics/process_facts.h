// SPDX-License-Identifier: Apache-2.0
// What the kernel knows of this process.
#pragma once

#include <cstdint>

namespace kvtier {

struct ProcessFacts {
  double cpu_seconds = 0;
  double start_time_seconds = 0;  // Unix time
  uint64_t resident_bytes = 0;
  uint64_t open_descriptors = 0;
  // What this process has caused to be written to storage: blocks, headers and the index with its
  // compactions. 0 where the kernel does not tell.
  uint64_t written_bytes = 0;
};

// Reads /proc; what cannot be read stays 0. Any thread.
[[nodiscard]] ProcessFacts ReadProcessFacts();

}  // namespace kvtier
