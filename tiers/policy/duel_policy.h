// SPDX-License-Identifier: Apache-2.0
// Eviction by the order that has been measured to serve more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tiers/policy/eviction_duel.h"
#include "tiers/policy/eviction_policy.h"

namespace kvtier {

// LRU; and while an EvictionDuel has it lead, the order of MakeUseClassPolicy, of which the
// arguments are. Both are kept up to date: the order takes 8 bytes for each row more than that one.
[[nodiscard]] std::unique_ptr<EvictionPolicy> MakeDuelPolicy(std::function<uint32_t()> now_s,
                                                             EvictionDuel::Capacity capacity);

}  // namespace kvtier
