// SPDX-License-Identifier: Apache-2.0
// Eviction by classes of use: which block of a pool is worth least, told from how often it was used
// and how long it has been idle.
//
// LRU in a pool that is much smaller than the working set keeps prompts that were asked once as
// long as prefixes that many share. This policy keeps one LRU list for each class of blocks that
// were used about equally often. Its victim is the coldest block of one of these lists: of the one
// whose coldest has the lowest rank by its class and age. The ranks are learned from the pool's own
// blocks (SurvivalTable), so that where recency alone foretells the next use, recency alone
// decides. A block is of no use without those before it: one with children in the order is passed
// over while another list's coldest has none.
//
// A choice looks at one block of each class. The order takes 18 bytes for each row that ever had a
// block in it, 10 more than LRU's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tiers/policy/eviction_policy.h"

namespace kvtier {

// `now_s` is the clock of BlockFacts::last_use_s; it outlives the policy. The same calls at the
// same times lead to the same choices.
[[nodiscard]] std::unique_ptr<EvictionPolicy> MakeUseClassPolicy(std::function<uint32_t()> now_s);

}  // namespace kvtier
