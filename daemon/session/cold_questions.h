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

// One for each group that lacks a block that a prefix beyond the longest restorable one needs; none
// if that reaches to the end of the shortest group. Which boundary it will be is not known before
// the answer, so that all blocks are asked for that any of the longer ones needs, in one round
// trip. Pure.
[[nodiscard]] std::vector<ColdQuestion> ColdQuestions(std::span<const GroupPresence> groups);

// A group's pool and blocks, from block 0 on.
struct ColdSubject {
  PoolId pool;
  std::span<const BlockHash> hashes;
};

// By group: of each of its blocks, whether the store has it.
using ColdPresence = std::vector<std::vector<uint8_t>>;

// Asks the store about blocks of one pool, as Cache::AskColdStore does.
using ColdAsker = std::function<void(PoolId pool, const std::vector<BlockHash>& hashes, ColdAsk ask,
                                     std::function<void(std::vector<bool>)> done)>;

// Asks all questions at the same time and calls `done` once all are answered: from a later event,
// or within the call. `subjects` are looked at in the call only. REQUIRES: there is a store.
void AskColdStore(const ColdAsker& asker, std::span<const ColdSubject> subjects,
                  std::vector<ColdQuestion> questions,
                  std::function<void(const ColdPresence&)> done);

}  // namespace kvtier
