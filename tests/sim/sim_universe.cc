// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_universe.h"

#include "tests/fakes/derived_bytes.h"

namespace kvtier {

SimUniverse::SimUniverse(SeededRandom random) : salt_(random.Next()) {
  for (uint32_t stream = 0; stream < kStreams; ++stream) {
    forks_.push_back(stream == 0 ? 0 : static_cast<uint32_t>(random.Below(kDepth - 2)));
    for (uint32_t depth = forks_[stream]; depth < kDepth; ++depth) {
      all_.push_back(HashAt(stream, depth));
    }
    for (uint32_t depth = 0; depth <= kDepth; ++depth) {
      for (uint32_t which = 0; which < kPartialBlocks; ++which) {
        all_.push_back(PartialBlockAt(stream, depth, which));
      }
    }
  }
}

BlockHash SimUniverse::HashAt(uint32_t stream, uint32_t depth) const {
  while (depth < forks_[stream]) stream /= 2;
  return TestHash(salt_ + stream, depth);
}

BlockHash SimUniverse::PartialBlockAt(uint32_t stream, uint32_t depth, uint32_t which) const {
  return TestHash(salt_ + 1000 + stream, depth * kPartialBlocks + which);
}

RetentionClass SimUniverse::RetentionOf(const BlockHash& hash) {
  return hash.bytes[31] % 4 == 0 ? RetentionClass::kMemory : RetentionClass::kExtended;
}

BlockHash SimUniverse::ContentsOf(uint32_t name_space, const BlockHash& hash) {
  BlockHash contents = hash;
  contents.bytes[30] ^= static_cast<uint8_t>(name_space + 1);
  return contents;
}

}  // namespace kvtier
