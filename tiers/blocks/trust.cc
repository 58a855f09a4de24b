// SPDX-License-Identifier: Apache-2.0
#include "tiers/blocks/trust.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtier {

Party Trust::Open(const ProcessIdentity& process, SessionId session) {
  const bool is_known = process.pid > 0 && process.birth > 0;
  // Births of processes are far smaller than the number that stands for none.
  const Name name = is_known ? Name(static_cast<uint64_t>(process.pid), process.birth)
                             : Name(session.value, UINT64_MAX);
  if (members_.size() >= prune_at_) Prune();
  const auto [known, is_new] = parties_.try_emplace(name, Party(last_.value + 1));
  if (is_new) {
    last_ = known->second;
    members_[last_].name = name;
  }
  ++members_.at(known->second).regions;
  return known->second;
}

void Trust::Prune() {
  std::set<Party> expelled;
  for (const auto& [whose, party] : expelled_) expelled.insert(party);
  std::erase_if(members_, [&](const auto& one) {
    const auto& [party, member] = one;
    if (member.regions > 0 || member.blocks > 0 || expelled.contains(party)) return false;
    parties_.erase(member.name);
    return true;
  });
  // Twice as many as stay: each new party costs a look at two others.
  prune_at_ = std::max(kLeastParties, 2 * members_.size());
}

void Trust::NoteStored(EntryRef block, Party party) {
  NoteGone(block.row);
  stored_.At(block.row.value) = {block.generation, party};
  if (party != kUnknownParty) ++BlocksOf(party);
}

void Trust::NoteGone(EntryIndex row) {
  if (stored_.Find(row.value) == nullptr) return;
  const Stored gone = std::exchange(stored_[row.value], {});
  if (gone.party != kUnknownParty) --BlocksOf(gone.party);
}

uint64_t& Trust::BlocksOf(Party party) {
  return party == kCondemnedParty ? condemned_ : members_.at(party).blocks;
}

Party Trust::StorerOf(EntryRef block) const {
  const Stored* const stored = stored_.Find(block.row.value);
  return stored != nullptr && stored->generation == block.generation ? stored->party
                                                                     : kUnknownParty;
}

std::string Trust::NameOf(Party party) const {
  const auto known = members_.find(party);
  if (known == members_.end()) return "an earlier engine";
  const auto& [number, start] = known->second.name;
  return fmt::format("{} {}", start == UINT64_MAX ? "session" : "process", number);
}

void Trust::Agree(NamespaceId whose, Party stored, Party computed) {
  std::set<Pair>& agreements = evidence_[whose].agreements;
  if (stored != computed && agreements.size() < kMostPairs) {
    agreements.insert(PairOf(stored, computed));
  }
}

Ruling Trust::Differ(NamespaceId whose, TenantLine tenant, Party stored, Party computed) {
  Evidence& evidence = evidence_[whose];
  if (evidence.differences.size() >= kMostPairs) evidence.differences.clear();
  const uint32_t count = ++evidence.differences[PairOf(stored, computed)];
  if (stored != computed) {
    for (const Party party : {stored, computed}) {
      if (DiffersFromTwo(evidence, party)) return Expel(whose, party, &evidence);
    }
  }
  if (count < kMostDifferences) return {};
  const bool for_stored = AgreesWithThird(evidence, stored, computed);
  const bool for_computed = AgreesWithThird(evidence, computed, stored);
  if (stored != computed && for_stored != for_computed) {
    return Expel(whose, for_stored ? computed : stored, &evidence);
  }
  Distrust(whose, tenant);
  return {.kind = Ruling::Kind::kDistrust};
}

bool Trust::DiffersFromTwo(const Evidence& evidence, Party party) {
  return std::ranges::count_if(evidence.differences, [party](const auto& difference) {
           const auto& [first, second] = difference.first;
           return first != second && (first == party || second == party);
         }) >= 2;
}

bool Trust::AgreesWithThird(const Evidence& evidence, Party party, Party other) {
  return std::ranges::any_of(evidence.agreements, [&](const Pair& pair) {
    return (pair.first == party && pair.second != other) ||
           (pair.second == party && pair.first != other);
  });
}

Ruling Trust::Expel(NamespaceId whose, Party party, Evidence* evidence) {
  const auto is_of_it = [party](const Pair& pair) {
    return pair.first == party || pair.second == party;
  };
  std::erase_if(evidence->differences, [&](const auto& one) { return is_of_it(one.first); });
  std::erase_if(evidence->agreements, is_of_it);
  if (party != kUnknownParty) expelled_.emplace(whose, party);
  return {.kind = Ruling::Kind::kExpel, .party = party};
}

void Trust::Distrust(NamespaceId whose, TenantLine tenant) {
  if (distrusted_.emplace(whose, tenant).second) ++counts_[tenant];
  evidence_.erase(whose);
}

bool Trust::Forgive(NamespaceId whose) {
  evidence_.erase(whose);
  std::erase_if(expelled_, [whose](const auto& one) { return one.first == whose; });
  const auto found = distrusted_.find(whose);
  if (found == distrusted_.end()) return false;
  --counts_[found->second];
  distrusted_.erase(found);
  return true;
}

}  // namespace kvtier
