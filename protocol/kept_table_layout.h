// SPDX-License-Identifier: Apache-2.0
// The table beside kept memory, as it lies in its file: kvtier_kept_memory.h has the layout and its
// rules. The engine's library writes it, other processes and the daemon read it at the same time.
#pragma once

#include <array>
#include <cstdint>

namespace kvtier::wire {

using KeptHashWords = std::array<uint64_t, 4>;

struct KeptTableHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t blocks;
  uint64_t sequence;  // of the last publishing
  KeptHashWords root;
  uint64_t reserved;
};

// The records of all blocks follow the header, in the order of their numbers.
struct KeptTableRecord {
  uint64_t state;  // 0: the block holds nothing; else the number of its publishing
  uint32_t group;
  uint32_t reserved;
  KeptHashWords hash;
  std::array<uint64_t, 2> reserved_too;
};

static_assert(sizeof(KeptTableHeader) == 64 && sizeof(KeptTableRecord) == 64);

}  // namespace kvtier::wire
