// SPDX-License-Identifier: Apache-2.0
// Which memory the ring knows, and under which numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_size.h"

namespace kvtier {

// The kernel's bound on one registered buffer.
inline constexpr uint64_t kMaxRegisteredBytes = 1 * kGiB;
// The table's size: 2 TiB of arena in full entries.
inline constexpr int kMaxRegisteredEntries = 2048;

inline constexpr int kNotRegistered = -1;

class RegisteredMemory {
 public:
  struct Entry {
    std::span<std::byte> memory;
    int number = 0;
  };

  // Cuts `memory` into new entries, leaving out what is registered already. Numbers are given once
  // and never come back.
  [[nodiscard]] std::vector<Entry> Plan(std::span<std::byte> memory);
  // The entry is known to the kernel from now on.
  void Add(const Entry& entry);
  // The number of the entry that holds all of [data, data + bytes), or kNotRegistered.
  [[nodiscard]] int Find(const std::byte* data, uint64_t bytes) const;

 private:
  int next_number_ = 0;
  std::vector<Entry> entries_;  // by address
};

}  // namespace kvtier
