// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/group_lookup.h"

#include <algorithm>
#include <array>
#include <utility>

#include "protocol/restorable_prefix.h"
#include "tiers/policy/load_plan.h"

namespace kvtier {
namespace {

// To find a rank's namespace the model record is encoded and hashed, which takes as long as to look
// for so many blocks. A model may have a thousand ranks.
constexpr size_t kBlocksPerRank = 64;

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

// How many of a group's blocks come over each way, counted up to each block.
class WayCounts {
 public:
  using Counts = std::array<uint64_t, kLoadWayCount>;

  explicit WayCounts(std::span<const uint8_t> presence) {
    Counts sum{};
    up_to_.reserve(presence.size() + 1);
    up_to_.push_back(sum);
    for (const uint8_t bits : presence) {
      const bool here = (bits & wire::kPresentInPool) != 0;
      const bool in_host = (bits & wire::kPresentInHost) != 0;
      const bool cold = bits == wire::kInColdStore;
      if (!here) ++sum[static_cast<size_t>(LoadWay::kBus)];
      if (!here && !in_host) ++sum[static_cast<size_t>(cold ? LoadWay::kCold : LoadWay::kDisk)];
      up_to_.push_back(sum);
    }
  }
  // The counts of blocks [first, end). REQUIRES: end is not beyond the last.
  [[nodiscard]] Counts Of(uint64_t first, uint64_t end) const {
    Counts counts{};
    if (first >= end) return counts;
    for (size_t way = 0; way < kLoadWayCount; ++way) {
      counts[way] = up_to_[end][way] - up_to_[first][way];
    }
    return counts;
  }

 private:
  std::vector<Counts> up_to_;
};

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
    if (options_.all_ranks && block_ == 0) *looked += kBlocksPerRank;
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

wire::LookupCut GroupLookup::ChooseCut(std::span<const uint64_t> prefixes) const {
  std::vector<PrefixOffer> offers{{.tokens = options_.held_tokens}};
  for (size_t i = prefixes.size(); i > 0; --i) {
    if (prefixes[i - 1] > options_.held_tokens) offers.push_back({.tokens = prefixes[i - 1]});
  }
  uint64_t block_bytes = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const GroupRule rule = model_->record.groups[parts_[i].group].rule();
    const WayCounts counts(reply_.parts[i].presence);
    const uint64_t bytes = model_->groups[parts_[i].group].block_bytes;
    block_bytes = std::max(block_bytes, bytes);
    const uint64_t held_blocks = options_.held_tokens / rule.block_tokens;
    for (PrefixOffer& offer : std::span(offers).subspan(1)) {
      const BlockRange needed = NeededBlocks(rule, offer.tokens);
      const auto blocks = counts.Of(std::max(needed.first, held_blocks), needed.end);
      for (size_t way = 0; way < kLoadWayCount; ++way) {
        // Each rank has a bus of its own, and all have one disk.
        const bool shared = way != static_cast<size_t>(LoadWay::kBus);
        offer.bytes[way] += blocks[way] * bytes * (shared ? RanksOf(parts_[i]) : 1);
      }
    }
  }
  const PrefixChoice choice =
      ChoosePrefix(*options_.wish, offers, block_bytes, cache_.PricesNow(parts_.front().pool));
  return {.tokens = offers[choice.index].tokens,
          .load_us = ForecastUs(choice.load_us),
          .ready_us = ForecastUs(choice.ready_us)};
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
  const bool all = options_.every_prefix || options_.wish;
  reply_.prefixes = RestorablePrefixes(groups, all ? SIZE_MAX : 1);
  if (options_.wish) reply_.cut = ChooseCut(reply_.prefixes);
  if (!options_.every_prefix) reply_.prefixes.resize(std::min<size_t>(reply_.prefixes.size(), 1));
  return std::move(reply_);
}

}  // namespace kvtier
