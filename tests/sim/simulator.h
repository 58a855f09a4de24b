// SPDX-License-Identifier: Apache-2.0
// One simulated life of a cache: days of clients, faults and crashes in milliseconds, all from one
// seed. Aborts with a message when anything that was promised does not hold.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/sim/sim_client.h"
#include "tests/sim/sim_erasures.h"
#include "tests/sim/sim_floors.h"
#include "tests/sim/sim_kept_host.h"
#include "tests/sim/sim_kept_pools.h"
#include "tests/sim/sim_oracle.h"
#include "tests/sim/sim_plan.h"
#include "tests/sim/sim_regions.h"
#include "tests/sim/sim_universe.h"
#include "tests/sim/sim_world.h"

namespace kvtier {

struct SimReport {
  uint64_t events = 0;
  uint64_t crashes = 0;
  uint64_t survivors = 0;  // blocks that had to be there after a crash and were
  uint64_t adopted = 0;    // blocks that had to be in host or in a pool again and were
  uint64_t floors = 0;     // trials of a tenant's reserved space
  uint64_t erasures = 0;   // of a tenant's blocks, after which nothing came back
  uint64_t transfers = 0;  // of regions, that were reported
  CacheStats stats;        // of the last life
};

class Simulator {
 public:
  Simulator(const SimPlan& plan, bool verbose);

  SimReport Run();

 private:
  struct Quarantine {
    SessionId session;
    std::vector<SimBlock> blocks;
  };

  void Step();
  void ClientStep(uint64_t choice);
  void UpkeepStep(uint64_t choice);
  void RunSomeEvents();
  void PassTime(int64_t ms);
  // The same, mostly with a tick.
  void AdvanceClock(int64_t ms);
  void Tick();
  void Judge();

  void OpenClient();
  void CloseClient();
  void ReleaseQuarantine();
  void ScribbleInQuarantine();
  void Prefetch();
  void Pin();
  void Hint();
  void Verify();
  void Drain();
  void ChangeCaps();
  void TryFloors();
  // False if the cache does not come to rest in an hour.
  [[nodiscard]] bool ComeToRest();
  void GrowArena();
  void Resize();
  void MaybeCrash();
  void RestartFromIndex(FakeMachine::HostMemory host);
  void AfterDeath();
  void RestartFromHeaders(FakeMachine::HostMemory host);
  void ServeSurvivors();

  // Ends everything and checks that nothing is left under way or behind.
  void Quiesce();
  void UnpinEverything();
  void SettleUntilIdle();
  void CheckNothingHeld() const;
  void CheckEverythingUsable();
  void ExpireEverything();

  [[nodiscard]] bool DiskIsSound() const;
  void Trace(const char* what);
  [[nodiscard]] SimPool RandomPool();
  [[nodiscard]] std::vector<BlockHash> RandomPrefix();

  const SimPlan& plan_;
  const bool verbose_;
  SeededRandom random_;
  const SimUniverse universe_;
  SimWorld world_;
  SimOracle oracle_;
  SimFloors floors_;
  SimKeptHost kept_host_;
  SimKeptPools kept_pools_;
  SimErasures erasures_;
  SimRegions regions_;
  std::vector<std::shared_ptr<SimClient>> clients_;
  std::vector<Quarantine> quarantines_;
  uint64_t next_session_ = 1;
  uint64_t draining_ = 0;
  uint64_t verifying_ = 0;
  uint32_t step_ = 0;
  bool scanned_ = false;
  SimReport report_;
};

}  // namespace kvtier
