// SPDX-License-Identifier: Apache-2.0
// Names the storer of each block, and rules which storers of one identity (a namespace: tenant,
// model and epoch) can be believed.
//
// A canary tells that a block which one party stored differs from the same block as another party
// computed it. The daemon cannot know which of the two is right, so that the rule counts parties:
//  1. The block goes, whichever of the two is right.
//  2. A party that differs from two others is expelled: its blocks go, it stores none any more,
//     and its differences count against no other.
//  3. If two have differed over kMostDifferences blocks and a third agrees with one of them, the
//     other one is expelled.
//  4. If no third has judged, or a party differs from itself so often, then the identity fails
//     to tell KV apart: it is distrusted, and none of its blocks is served or stored until
//     an administrator forgets it.
// So one bad engine takes nothing from two good ones, and bad weights under a good name are found
// by two engines, or by one before and after.
//
// A party is an engine's process. All blocks of which this process does not know who stored them,
// as those that an earlier daemon left, are one party's (kUnknown), which is never expelled: only
// its blocks go.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tiers/directory/directory.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/tenant_queues.h"
#include "tiers/types/block_key.h"
#include "tiers/types/session_identity.h"

namespace kvtier {

using Party = Strong<struct PartyTag, uint32_t>;
inline constexpr Party kUnknownParty{0};
// Stands for the storer of condemned blocks.
inline constexpr Party kCondemnedParty{UINT32_MAX};

// The consequence of a difference, beside the end of the block.
struct Ruling {
  enum class Kind : uint8_t { kNothing, kExpel, kDistrust };
  Kind kind = Kind::kNothing;
  Party party;  // that is expelled
};

// Event loop only. Forgets everything but distrust with the process.
class Trust {
 public:
  static constexpr uint32_t kMostDifferences = 3;
  // So many identities of one tenant are distrusted at most: each is kept until an administrator
  // forgets it, and a tenant's own processes can have any of its identities distrusted.
  static constexpr size_t kMostOfTenant = 1024;

  // The party opens a region, from which it may store until it closes it. The same for the same
  // process; its session stands for one that has no number here.
  [[nodiscard]] Party Open(const ProcessIdentity& process, SessionId session);
  void Close(Party party) { --members_.at(party).regions; }
  // Parties that are known: those with regions or blocks, those expelled, and some others until
  // there are too many of these.
  [[nodiscard]] size_t parties() const { return members_.size(); }
  void NoteStored(EntryRef block, Party party);
  // The block is to be dropped, and something uses it still: it is refused until it goes.
  void Condemn(EntryRef block) { NoteStored(block, kCondemnedParty); }
  // The row is to hold another block.
  void NoteGone(EntryIndex row);
  [[nodiscard]] Party StorerOf(EntryRef block) const;
  // For people.
  [[nodiscard]] std::string NameOf(Party party) const;

  void Agree(NamespaceId whose, Party stored, Party computed);
  // The ruling is in force when this returns.
  [[nodiscard]] Ruling Differ(NamespaceId whose, TenantLine tenant, Party stored, Party computed);

  [[nodiscard]] bool Distrusts(NamespaceId whose) const {
    return !distrusted_.empty() && distrusted_.contains(whose);
  }
  // Also of a party whose blocks are being dropped.
  [[nodiscard]] bool Expelled(NamespaceId whose, Party party) const {
    return !expelled_.empty() && expelled_.contains({whose, party});
  }
  // The block must not be served, although its identity is trusted.
  [[nodiscard]] bool Refuses(NamespaceId whose, EntryRef block) const {
    if (expelled_.empty() && condemned_ == 0) return false;
    const Party storer = StorerOf(block);
    return storer == kCondemnedParty || Expelled(whose, storer);
  }
  [[nodiscard]] const std::map<NamespaceId, TenantLine>& distrusted() const { return distrusted_; }
  void Distrust(NamespaceId whose, TenantLine tenant);
  // Whether another identity of the tenant may be distrusted.
  [[nodiscard]] bool HasRoom(TenantLine tenant) const {
    const auto count = counts_.find(tenant);
    return count == counts_.end() || count->second < kMostOfTenant;
  }
  // Everything said of the identity is forgotten. True if it was distrusted.
  bool Forgive(NamespaceId whose);

 private:
  // So many parties are known before any is forgotten.
  static constexpr size_t kLeastParties = 1024;
  // Pairs of one identity that are remembered at most; parties come and go with engines.
  static constexpr size_t kMostPairs = 4096;
  using Pair = std::pair<Party, Party>;  // the smaller number first
  struct Evidence {
    std::map<Pair, uint32_t> differences;
    std::set<Pair> agreements;
  };
  struct Stored {
    uint32_t generation = 0;  // of the row
    Party party;
  };
  // A process by its number and its start, or a session by its number.
  using Name = std::pair<uint64_t, uint64_t>;
  struct Member {
    Name name;
    uint64_t regions = 0;
    uint64_t blocks = 0;
  };

  [[nodiscard]] static Pair PairOf(Party a, Party b) { return std::minmax(a, b); }
  [[nodiscard]] static bool DiffersFromTwo(const Evidence& evidence, Party party);
  [[nodiscard]] static bool AgreesWithThird(const Evidence& evidence, Party party, Party other);
  Ruling Expel(NamespaceId whose, Party party, Evidence* evidence);
  [[nodiscard]] uint64_t& BlocksOf(Party party);
  // Forgets the parties that have neither regions nor blocks and are not expelled. Their numbers
  // are not given again, so that evidence is no other's.
  void Prune();

  std::map<Name, Party> parties_;
  std::unordered_map<Party, Member> members_;
  Party last_;
  size_t prune_at_ = kLeastParties;
  PagedArray<Stored> stored_;  // by row
  uint64_t condemned_ = 0;     // rows
  std::unordered_map<NamespaceId, Evidence> evidence_;
  std::set<std::pair<NamespaceId, Party>> expelled_;
  std::map<NamespaceId, TenantLine> distrusted_;
  std::map<TenantLine, size_t> counts_;  // of `distrusted_`
};

}  // namespace kvtier
