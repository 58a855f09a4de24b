// SPDX-License-Identifier: Apache-2.0
#include "tiers/blocks/trust.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtier {

Party Trust::PartyOf(const ProcessIdentity& process, SessionId session) {
  const bool is_known = process.pid > 0 && process.start_time > 0;
  // Start times of processes are far smaller than the number that stands for none.
  const std::pair<uint64_t, uint64_t> name =
      is_known ? std::pair(static_cast<uint64_t>(process.pid), process.start_time)
               : std::pair(session.value, UINT64_MAX);
  const auto known = parties_.find(name);
  if (known != parties_.end()) return known->second;
  if (parties_.size() >= UINT16_MAX) return kUnknownParty;
  const Party party(static_cast<uint16_t>(parties_.size() + 1));
  parties_.emplace(name, party);
  return party;
}

void Trust::NoteStored(EntryRef block, Party party) {
  stored_.At(block.row.value) = {block.generation, party};
}

Party Trust::StorerOf(EntryRef block) const {
  const Stored* const stored = stored_.Find(block.row.value);
  return stored != nullptr && stored->generation == block.generation ? stored->party
                                                                     : kUnknownParty;
}

std::string Trust::NameOf(Party party) const {
  for (const auto& [name, known] : parties_) {
    if (known != party) continue;
    const char* const kind = name.second == UINT64_MAX ? "session" : "process";
    return fmt::format("{} {}", kind, name.first);
  }
  return "an earlier engine";
}

void Trust::Agree(NamespaceId whose, Party stored, Party computed) {
  std::set<Pair>& agreements = evidence_[whose].agreements;
  if (stored != computed && agreements.size() < kMostPairs) {
    agreements.insert(PairOf(stored, computed));
  }
}

Ruling Trust::Differ(NamespaceId whose, Party stored, Party computed) {
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
  Distrust(whose);
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

void Trust::Distrust(NamespaceId whose) {
  distrusted_.insert(whose);
  evidence_.erase(whose);
}

bool Trust::Forgive(NamespaceId whose) {
  evidence_.erase(whose);
  std::erase_if(expelled_, [whose](const auto& one) { return one.first == whose; });
  return distrusted_.erase(whose) > 0;
}

}  // namespace kvtier
