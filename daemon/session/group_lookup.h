// SPDX-License-Identifier: Apache-2.0
// A lookup over the groups of a model, for one tensor-parallel rank or for all of them: the tiers
// that hold each group's blocks, and which prefixes every group can restore. Done in steps: a model
// of many ranks has many blocks to look for.
//
// The ranks of a model are the models whose records differ in nothing but the rank. A block is
// there for all ranks when each rank has it in some tier.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "daemon/session/cold_questions.h"
#include "daemon/session/models.h"
#include "protocol/block_messages.h"
#include "tiers/cache.h"

namespace kvtier {

// Event loop only. A request's lookup is one object of this class, which its session keeps until
// the last step is done. It takes no references: the blocks that it reports may be evicted before
// the client acquires them.
class GroupLookup {
 public:
  // The hashes of one group, from block 0 on. `pool` is used where only the session's own rank is
  // asked for, `group` where the namespaces of all ranks are.
  struct Part {
    PoolId pool;
    uint32_t group = 0;
    std::vector<BlockHash> hashes;
  };
  // `all_ranks`: a block counts only if every rank has it, and is reported in the slowest of the
  // tiers in which the ranks find it. `every_prefix`: report all restorable prefixes, not the
  // longest alone.
  struct Options {
    bool all_ranks = false;
    bool every_prefix = false;
  };

  // `cache` is borrowed. REQUIRES: at least one part, all of `model`.
  GroupLookup(const Cache* cache, std::string tenant, ModelHold model, std::vector<Part> parts,
              Options options);

  // Looks for at most `max_blocks` more blocks, adding to `*looked` how many they were. True if
  // there is more to do.
  [[nodiscard]] bool Step(size_t max_blocks, size_t* looked);
  // The questions to the cold store, of this rank; nothing with `all_ranks`. Groups are the parts.
  // REQUIRES: Step returned false.
  [[nodiscard]] std::vector<ColdQuestion> Questions() const;
  [[nodiscard]] std::vector<ColdSubject> Subjects() const;
  void AddAnswers(const ColdPresence& present);
  // For each part the last block before the first that is in no tier, of this rank; nothing with
  // `all_ranks`. REQUIRES: Step returned false.
  [[nodiscard]] std::vector<std::pair<PoolId, BlockHash>> PrefixEnds() const;
  // REQUIRES: Step returned false.
  [[nodiscard]] wire::LookupReply TakeReply();

 private:
  [[nodiscard]] std::vector<GroupPresence> Presence() const;
  // How many ranks have blocks of their own of the part's group.
  [[nodiscard]] uint32_t RanksOf(const Part& part) const;
  // The tiers of the current part and rank that hold the hashes.
  [[nodiscard]] std::vector<BlockPresence> Look(std::span<const BlockHash> hashes);

  const Cache& cache_;
  const std::string tenant_;
  const ModelHold model_;
  const std::vector<Part> parts_;
  const Options options_;
  // Where the next step goes on.
  size_t part_ = 0;
  // The order is parts, then ranks, then blocks: the presence of a part is complete for one rank
  // before the next rank can only lower it.
  uint32_t rank_ = 0;
  size_t block_ = 0;
  std::optional<NamespaceId> rank_namespace_;  // of the current part and rank, if it is known
  wire::LookupReply reply_;
};

}  // namespace kvtier
