// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_erasures.h"

#include <algorithm>
#include <utility>

#include "tests/sim/sim_check.h"

namespace kvtier {

SimErasures::SimErasures(SimContext context, SeededRandom random)
    : context_(context), random_(random) {
  context_.world.OnErasureResumed(
      [this](const std::string& tenant, const EraseReport& report, const Status& status) {
        OnResumed(tenant, report, status);
      });
}

bool SimErasures::Step() {
  if (!context_.plan.erases || !random_.Chance(0.01)) return false;
  const auto& namespaces = context_.plan.namespaces;
  const std::string& tenant = namespaces[random_.Below(namespaces.size())].identity.tenant;
  const auto now_s = static_cast<uint32_t>(context_.world.machine().clock.WallMs() / 1000);
  begun_.push_back({tenant, now_s, context_.oracle.commits(), true});
  const size_t number = begun_.size() - 1;
  context_.world.cache().Erase({.tenant = tenant},
                               [this, number](const EraseReport& report, const Status& status) {
                                 begun_[number].under_way = false;
                                 OnEnded(begun_[number], report, status);
                               });
  return true;
}

// An erasure that the index refused to remember may be cut short, too; one that it remembers may
// have begun long ago.
std::vector<SimErasures::Erasure> SimErasures::Unfinished() const {
  std::vector<Erasure> unfinished;
  for (const Erasure& erasure : begun_) {
    if (erasure.under_way) unfinished.push_back(erasure);
  }
  if (context_.plan.sizes.disk_files == 0) return unfinished;
  for (const ErasureRecord& record : context_.world.machine().Snapshot().erasures) {
    unfinished.push_back({record.tenant, record.begun_s});
  }
  return unfinished;
}

void SimErasures::BeforeDeath() {
  for (const Erasure& erasure : Unfinished()) {
    context_.oracle.OnErasureCut(erasure.tenant, erasure.begun_s);
  }
  for (Erasure& erasure : begun_) erasure.under_way = false;
}

void SimErasures::AfterRestart() {
  resumed_.clear();
  if (context_.plan.sizes.disk_files == 0) return;
  for (const ErasureRecord& record : context_.world.machine().Snapshot().erasures) {
    const auto known = std::ranges::find_if(begun_, [&](const Erasure& erasure) {
      return erasure.tenant == record.tenant && erasure.begun_s == record.begun_s;
    });
    SIM_CHECK(known != begun_.end(), "the index remembers an erasure that never was");
    resumed_.push_back(*known);
    context_.oracle.OnErasureCut(record.tenant, record.begun_s);
  }
}

void SimErasures::OnResumed(const std::string& tenant, const EraseReport& report,
                            const Status& status) {
  SIM_CHECK(!resumed_.empty() && resumed_.front().tenant == tenant,
            "an erasure was finished that was not to be resumed");
  const Erasure erasure = resumed_.front();
  resumed_.erase(resumed_.begin());
  OnEnded(erasure, report, status);
}

void SimErasures::CheckEnded() const {
  SIM_CHECK(resumed_.empty(), "an erasure that an earlier daemon began was not finished");
  for (const Erasure& erasure : begun_) SIM_CHECK(!erasure.under_way, "an erasure has no end");
}

void SimErasures::OnEnded(const Erasure& erasure, const EraseReport& report, const Status& status) {
  SIM_CHECK(status.has_value() || context_.plan.disk_faulty || context_.plan.index_failure_rate > 0,
            "an erasure failed on a sound disk");
  // Kept memory that is not ready may hold more.
  const bool complete =
      status.has_value() && report.moving == 0 && context_.world.cache().AdoptionEnded();
  if (!complete) return;
  context_.oracle.OnErased(erasure.tenant, erasure.commits);
  ++ended_;
}

}  // namespace kvtier
