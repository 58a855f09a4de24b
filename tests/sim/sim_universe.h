// SPDX-License-Identifier: Apache-2.0
// The sequences that the simulated clients work on: hashes, what their blocks hold, how long they
// are kept. Follows from the seed alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "tests/fakes/seeded_random.h"

namespace kvtier {

class SimUniverse {
 public:
  explicit SimUniverse(SeededRandom random);

  static constexpr uint32_t kStreams = 14;
  static constexpr uint32_t kDepth = 12;
  static constexpr uint32_t kPartialBlocks = 2;

  // Block `depth` of a stream. Streams fork from one another: they share prefixes.
  [[nodiscard]] BlockHash HashAt(uint32_t stream, uint32_t depth) const;
  // A partial block that would follow after the first `depth` blocks.
  [[nodiscard]] BlockHash PartialBlockAt(uint32_t stream, uint32_t depth, uint32_t which) const;
  // Every hash there is, each once.
  [[nodiscard]] const std::vector<BlockHash>& all() const { return all_; }

  // The same hash always has the same class.
  [[nodiscard]] static RetentionClass RetentionOf(const BlockHash& hash);
  // The content of the block of `hash` in space `space`: no two spaces have the same bytes.
  [[nodiscard]] static BlockHash ContentsOf(uint32_t name_space, const BlockHash& hash);

 private:
  uint64_t salt_;
  std::vector<uint32_t> forks_;  // per stream: how many blocks it shares with stream / 2
  std::vector<BlockHash> all_;
};

}  // namespace kvtier
