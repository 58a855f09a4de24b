// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/group_lookup.h"

#include <algorithm>
#include <utility>

#include "protocol/restorable_prefix.h"

namespace kvtier {
namespace {

uint8_t BitsOf(const BlockPresence& block) {
  return static_cast<uint8_t>((block.pool ? wire::kPresentInPool : 0) |
                              (block.host ? wire::kPresentInHost : 0) |
                              (block.disk ? wire::kPersistedOnDisk : 0) |
                              (block.disk_unverified ? wire::kUnverifiedOnDisk : 0));
}

// The bits are in the order of the tiers, with what no read has checked yet last, so the lowest
// one is the fastest tier.
uint8_t FastestOf(uint8_t bits) { return static_cast<uint8_t>(bits & -bits); }

// One rank has `bits` of a block, those before it `others` (at most one bit).
uint8_t SlowestOf(uint8_t others, uint8_t bits) {
  return others == 0 || bits == 0 ? uint8_t{0} : std::max(others, FastestOf(bits));
}

}  // namespace

GroupLookup::GroupLookup(const Cache* cache, std::string tenant, ModelHold model,
                         std::vector<Part> parts, Options options)
    : cache_(*cache),
      tenant_(std::move(tenant)),
      model_(std::move(model)),
      parts_(std::move(parts)),
      options_(options),
      reply_{.prefixes = {}, .parts = std::vector<wire::LookupReply::Part>(parts_.size())} {}

// A replicated group has one set of blocks that all ranks share, so that one look tells for all.
uint32_t GroupLookup::RanksOf(const Part& part) const {
  const bool several = options_.all_ranks && !model_->record.groups[part.group].replicated;
  return several ? model_->record.tensor_parallel_size : 1;
}

// A rank whose namespace is unknown has never stored anything: its blocks are reported absent. The
// namespace is computed once per rank and part, since it hashes the whole model record.
std::vector<BlockPresence> GroupLookup::Look(std::span<const BlockHash> hashes) {
  const Part& part = parts_[part_];
  if (!options_.all_ranks) return cache_.Lookup(part.pool, hashes);
  if (block_ == 0) {
    ModelRecord record = model_->record;
    record.tensor_parallel_rank = rank_;
    rank_namespace_ = cache_.FindNamespace({.tenant = tenant_,
                                            .model = record.GroupFingerprint(part.group),
                                            .block_bytes = model_->groups[part.group].block_bytes});
  }
  if (!rank_namespace_) return std::vector<BlockPresence>(hashes.size());
  return cache_.Lookup(*rank_namespace_, hashes);
}

bool GroupLookup::Step(size_t max_blocks, size_t* looked) {
  while (part_ < parts_.size()) {
    const Part& part = parts_[part_];
    std::vector<uint8_t>& presence = reply_.parts[part_].presence;
    const auto hashes = std::span(part.hashes).subspan(block_);
    // A model may have a thousand ranks.
    if (options_.all_ranks && block_ == 0) *looked += kModelHashPrice;
    // A rank's price may be all that is left: some block is looked for nevertheless, or a small
    // budget would never lead anywhere.
    const size_t left = std::max<size_t>(1, max_blocks - std::min(max_blocks, *looked));
    const auto some = hashes.first(std::min(hashes.size(), left));
    *looked += std::max<size_t>(some.size(), 1);
    for (const BlockPresence& block : Look(some)) {
      const uint8_t bits = BitsOf(block);
      if (rank_ == 0) {
        presence.push_back(options_.all_ranks ? FastestOf(bits) : bits);
      } else {
        presence[block_] = SlowestOf(presence[block_], bits);
      }
      ++block_;
    }
    if (block_ == part.hashes.size()) {
      block_ = 0;
      if (++rank_ == RanksOf(part)) {
        rank_ = 0;
        ++part_;
      }
    }
    if (*looked >= max_blocks && part_ < parts_.size()) return true;
  }
  return false;
}

std::vector<GroupPresence> GroupLookup::Presence() const {
  std::vector<GroupPresence> groups;
  for (size_t i = 0; i < parts_.size(); ++i) {
    groups.push_back({model_->record.groups[parts_[i].group].rule(), reply_.parts[i].presence});
  }
  return groups;
}

// The other ranks' names in the store could be told, but not what this host's clients may load of
// them.
std::vector<ColdQuestion> GroupLookup::Questions() const {
  return options_.all_ranks ? std::vector<ColdQuestion>() : ColdQuestions(Presence());
}

std::vector<ColdSubject> GroupLookup::Subjects() const {
  std::vector<ColdSubject> subjects;
  for (const Part& part : parts_) subjects.push_back({part.pool, part.hashes});
  return subjects;
}

void GroupLookup::AddAnswers(const ColdPresence& present) {
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (size_t block = 0; block < present[part].size(); ++block) {
      if (present[part][block] != 0) reply_.parts[part].presence[block] = wire::kInColdStore;
    }
  }
}

std::vector<std::pair<PoolId, BlockHash>> GroupLookup::PrefixEnds() const {
  std::vector<std::pair<PoolId, BlockHash>> ends;
  for (size_t i = 0; i < parts_.size() && !options_.all_ranks; ++i) {
    const std::vector<uint8_t>& presence = reply_.parts[i].presence;
    const size_t found = std::ranges::find(presence, 0) - presence.begin();
    if (found > 0) ends.emplace_back(parts_[i].pool, parts_[i].hashes[found - 1]);
  }
  return ends;
}

wire::LookupReply GroupLookup::TakeReply() {
  const std::vector<GroupPresence> groups = Presence();
  reply_.prefixes = RestorablePrefixes(groups, options_.every_prefix ? SIZE_MAX : 1);
  return std::move(reply_);
}

}  // namespace kvtier
