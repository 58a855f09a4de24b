// SPDX-License-Identifier: Apache-2.0
#include "tiers/blocks/block_ends.h"

#include <utility>

namespace kvtier {

bool BlockEnds::TellKept() {
  const std::vector<BlockEnd> ends = std::exchange(kept_, {});
  if (!ends.empty()) Tell(ends);
  return !ends.empty();
}

}  // namespace kvtier
