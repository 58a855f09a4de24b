// SPDX-License-Identifier: Apache-2.0
#include "tiers/types/block_key_hash.h"

#include <random>

namespace kvtier {

BlockKeyHash::BlockKeyHash() {
  std::random_device random;
  for (uint64_t& word : secrets_) word = uint64_t{random()} << 32 | random() | 1;
}

}  // namespace kvtier
