// SPDX-License-Identifier: Apache-2.0
// Host memory that outlives the daemon: the blocks that die with it all the same, those that are
// damaged meanwhile, and those that the next daemon must have adopted.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/sim/sim_client.h"

namespace kvtier {

class SimKeptHost {
 public:
  SimKeptHost(SimContext context, SeededRandom random) : context_(context), random_(random) {}

  // The daemon is about to die. Says whether host memory stays.
  [[nodiscard]] FakeMachine::HostMemory BeforeDeath();
  // The daemon has ended, and the next one has not begun. Late writes may arrive, bits may change.
  void AfterDeath();
  // The next daemon has begun, and no client has come yet. Sometimes has all of the memory looked
  // at at once, and checks that all whole blocks are in host again.
  void AfterRestart();

  // Some life has found memory that was kept.
  [[nodiscard]] bool adopted_ever() const { return adopted_ever_; }
  [[nodiscard]] bool damaged_ever() const { return damaged_ever_; }
  // Blocks that had to be in host again and were.
  [[nodiscard]] uint64_t survivors() const { return survivors_; }

 private:
  struct Expected {
    SimPool pool;
    BlockHash hash;
    int64_t expires_ms = 0;
  };

  void NoteComplete();
  void NoteCopy(uint64_t address);
  // Writes of the dead process that come late.
  void WriteLate();
  void ChangeBits();

  SimContext context_;
  SeededRandom random_;
  std::vector<Expected> expected_;
  struct Slot {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };
  std::vector<Slot> filling_;
  bool kept_ = false;
  bool damaged_ = false;  // since all of the memory was looked at
  bool adopted_ever_ = false;
  bool damaged_ever_ = false;
  std::unordered_set<uint64_t> changed_;  // words of the table since it was new
  uint64_t survivors_ = 0;
};

}  // namespace kvtier
