// SPDX-License-Identifier: Apache-2.0
// Which blocks are worth being written to disk: those that are likely enough to be used again
// before they would have to go from there.
//
// Most blocks that a chat service computes are never asked for again, and a drive wears by writes.
// So a block is first looked up in a table of how blocks of its kind have fared: how likely one
// that was used about as often, and has been idle for as long, is to be used in the time that it
// would have on disk. Each tenant with quotas has a table of its own, learned from its blocks
// alone, and all others have one together. As long as little has been learned everything is
// admitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tiers/policy/eviction_policy.h"
#include "tiers/policy/survival_table.h"
#include "tiers/policy/tenant_table.h"

namespace kvtier {

// Event loop only.
class DiskAdmission {
 public:
  explicit DiskAdmission(uint32_t tenants) : tables_(tenants) {}

  // The block is used, or has been computed, perhaps anew.
  void NoteUse(TenantId tenant, const BlockFacts& facts, uint32_t now_s);
  // The block has been in use until its last use.
  void NoteIdle(TenantId tenant, const BlockFacts& facts);
  // One of many after which the tables learn.
  void NoteRequest(uint32_t now_s);

  // How likely the block is to be used before it has been idle for `until_s`.
  [[nodiscard]] double ChanceOfUse(TenantId tenant, uint32_t uses, uint32_t idle_s,
                                   uint32_t until_s) const;

  [[nodiscard]] size_t memory_bytes() const;

 private:
  // By tenant; null as long as none of its blocks belongs to the sample.
  std::vector<std::unique_ptr<SurvivalTable>> tables_;
  uint32_t requests_ = 0;
};

}  // namespace kvtier
