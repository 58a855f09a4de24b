// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/disk_admission.h"

#include <algorithm>

namespace kvtier {
namespace {

constexpr uint32_t kRequestsPerAdmissionLesson = 256;

}  // namespace

void DiskAdmission::NoteUse(TenantId tenant, const BlockFacts& facts, uint32_t now_s) {
  if (!SurvivalTable::Samples(facts.hash, facts.tokens)) return;
  if (const auto& table = tables_[tenant.value]) table->EndEpisode(facts.hash, now_s);
}

void DiskAdmission::NoteIdle(TenantId tenant, const BlockFacts& facts) {
  if (facts.leaves_first || !SurvivalTable::Samples(facts.hash, facts.tokens)) return;
  std::unique_ptr<SurvivalTable>& table = tables_[tenant.value];
  if (!table) table = std::make_unique<SurvivalTable>();
  const size_t use_class = SurvivalTable::ClassOf(std::max<uint32_t>(facts.uses, 1));
  table->RestartEpisode(facts.hash, use_class, facts.last_use_s);
}

void DiskAdmission::NoteRequest(uint32_t now_s) {
  if (++requests_ % kRequestsPerAdmissionLesson != 0) return;
  for (const auto& table : tables_) {
    if (table) table->Learn(now_s);
  }
}

double DiskAdmission::ChanceOfUse(TenantId tenant, uint32_t uses, uint32_t idle_s,
                                  uint32_t until_s) const {
  const auto& table = tables_[tenant.value];
  if (!table) return 1;
  return table->ChanceOfUse(SurvivalTable::ClassOf(std::max<uint32_t>(uses, 1)), idle_s, until_s);
}

size_t DiskAdmission::memory_bytes() const {
  size_t bytes = 0;
  for (const auto& table : tables_) bytes += table ? table->memory_bytes() : 0;
  return bytes;
}

}  // namespace kvtier
