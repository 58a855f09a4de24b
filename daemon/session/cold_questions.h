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

// A block of a window or a state that no tier here has.
struct ColdBlock {
  size_t group = 0;  // position among the groups
  size_t position = 0;
  uint64_t boundary_tokens = 0;  // the longest that needs it
};

// The blocks that prefixes need which end beyond the longest restorable one, but within full
// attention, which is known: those of the longest first. Pure.
[[nodiscard]] std::vector<ColdBlock> BoundaryBlocks(std::span<const GroupPresence> groups);

// Windows and states are asked about in parts of so many blocks, one after the other: some stores
// need a request for each, and one that is slow is to answer some in time.
inline constexpr size_t kMostAskedAtOnce = 256;

// A group's pool and blocks, from block 0 on.
struct ColdSubject {
  PoolId pool;
  GroupRule rule;
  std::span<const BlockHash> hashes;
};

// By group: of each of its blocks, whether the store has it.
using ColdPresence = std::vector<std::vector<uint8_t>>;

// Asks the store about blocks of one pool, as Cache::AskColdStore does. Once it has told nothing it
// is asked no more.
using ColdAsker = std::function<void(PoolId pool, const std::vector<BlockHash>& hashes, ColdAsk ask,
                                     std::function<void(std::vector<bool>)> done)>;

// Asks about full attention, then about boundaries until one is whole, and calls `done` once: from
// a later event, or within the call. `here`: of each group's blocks, nonzero where some tier has
// it. The subjects' hashes stay as they are while `done` is held. REQUIRES: there is a store.
void AskColdStore(ColdAsker asker, std::vector<ColdSubject> subjects, ColdPresence here,
                  std::function<void(const ColdPresence&)> done);
// Likewise about one group's blocks, whatever sequences they are of: each absent one of windows or
// states in its order; of full attention all that the store tells when it is asked for a prefix.
void LookUpInColdStore(ColdAsker asker, const ColdSubject& subject, std::vector<uint8_t> here,
                       std::function<void(const ColdPresence&)> done);

}  // namespace kvtier
