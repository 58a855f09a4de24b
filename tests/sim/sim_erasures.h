// SPDX-License-Identifier: Apache-2.0
// Erasures of a tenant's blocks: nothing of them comes back, also if the daemon dies meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/sim/sim_client.h"

namespace kvtier {

class SimErasures {
 public:
  SimErasures(SimContext context, SeededRandom random);

  // Sometimes begins one. False if not.
  bool Step();
  // The daemon is about to die: blocks being erased need not be there any more, nor be gone.
  void BeforeDeath();
  // The next daemon has begun, with what its index remembers.
  void AfterRestart();

  // Everything has come to rest: resumed erasures have ended, too.
  void CheckEnded() const;

  // The number of erasures that ended and left nothing, also when a later daemon finished them.
  [[nodiscard]] uint64_t ended() const { return ended_; }

 private:
  struct Erasure {
    std::string tenant;
    uint32_t begun_s = 0;
    uint64_t commits = 0;  // that had been made when it began
    bool under_way = false;
  };

  [[nodiscard]] std::vector<Erasure> Unfinished() const;
  void OnEnded(const Erasure& erasure, const EraseReport& report, const Status& status);
  // The erasure is one that an earlier daemon began.
  void OnResumed(const std::string& tenant, const EraseReport& report, const Status& status);

  SimContext context_;
  SeededRandom random_;
  std::vector<Erasure> begun_;    // all that ever were
  std::vector<Erasure> resumed_;  // by this daemon, in their order
  uint64_t ended_ = 0;
};

}  // namespace kvtier
