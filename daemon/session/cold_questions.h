// SPDX-License-Identifier: Apache-2.0
// The questions about a sequence to the store that hosts share, which may restore a longer prefix
// than this host can by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "protocol/restorable_prefix.h"
#include "tiers/cold/cold_store.h"

namespace kvtier {

// About one group: its blocks that no tier here has.
struct ColdQuestion {
  size_t group = 0;  // position among the groups
  ColdAsk ask = ColdAsk::kPrefix;
  std::vector<size_t> positions;
};

// One for each group of full attention that lacks a block of the longest prefix that all reach.
// Pure.
[[nodiscard]] std::vector<ColdQuestion> PrefixQuestions(std::span<const GroupPresence> groups);

// Boundaries are asked about until there are so many blocks: some stores need a request for each.
inline constexpr size_t kMostBoundaryBlocks = 256;
// One for each group of windows or states, once full attention is known: about those blocks that
// the longest prefixes within that need, beyond the longest restorable one. Pure.
[[nodiscard]] std::vector<ColdQuestion> BoundaryQuestions(std::span<const GroupPresence> groups);

// A group's pool and blocks, from block 0 on.
struct ColdSubject {
  PoolId pool;
  GroupRule rule;
  std::span<const BlockHash> hashes;
};

// By group: of each of its blocks, whether the store has it.
using ColdPresence = std::vector<std::vector<uint8_t>>;

// Asks the store about blocks of one pool, as Cache::AskColdStore does.
using ColdAsker = std::function<void(PoolId pool, const std::vector<BlockHash>& hashes, ColdAsk ask,
                                     std::function<void(std::vector<bool>)> done)>;

// Asks about full attention, then about the rest, and calls `done` once all is answered: from a
// later event, or within the call. `here`: of each group's blocks, nonzero where some tier has it.
// The subjects' hashes stay as they are while `done` is held. REQUIRES: there is a store.
void AskColdStore(ColdAsker asker, std::vector<ColdSubject> subjects, ColdPresence here,
                  std::function<void(const ColdPresence&)> done);

}  // namespace kvtier
