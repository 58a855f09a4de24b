// SPDX-License-Identifier: Apache-2.0
// Pools that outlive the daemon: processes that live on and write to their former blocks, bits that
// change meanwhile, and blocks that the next daemon must serve at once.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/sim/sim_client.h"

namespace kvtier {

class SimKeptPools {
 public:
  SimKeptPools(SimContext context, SeededRandom random) : context_(context), random_(random) {}

  // The daemon is about to die. Checks that the tables agree with the cache about every block.
  void BeforeDeath();
  // The daemon has ended, and the next one has not begun: pools may be lost with it, or damaged.
  void AfterDeath();
  // The next daemon has begun, and no client has come yet. Checks that all whole blocks are there.
  void AfterRestart();
  // Processes of the earlier life write to their former blocks, and find those that they read
  // unchanged; some of them end.
  void Step();
  // All of them have gone.
  void ReleaseAll();

  // Pools were there again after the last death.
  [[nodiscard]] bool kept() const { return kept_; }
  [[nodiscard]] bool damaged_ever() const { return damaged_ever_; }
  // Blocks that had to be in their pools again and were.
  [[nodiscard]] uint64_t survivors() const { return survivors_; }

 private:
  struct Whole {
    SimPool pool;
    BlockIndex block;
    BlockHash hash;
    bool referenced = false;
    int64_t expires_ms = 0;
  };
  struct Held {
    SimPool pool;
    BlockIndex block;
  };

  [[nodiscard]] SimPool PoolAt(size_t position) const;
  [[nodiscard]] std::span<std::byte> Bytes(SimPool pool, BlockIndex block) const;
  void ReadTables();
  void ChangeBits();
  void WriteLate();
  void CheckRead() const;
  void TouchReferenced();
  void ReleaseReaders(const AbsentClients& absent);

  SimContext context_;
  SeededRandom random_;
  std::vector<Whole> whole_;
  std::vector<Held> held_;
  std::vector<AbsentClients> readers_;  // whose references have not been given back, by pool
  std::vector<AbsentClients> writers_;
  bool kept_ = false;
  bool damaged_ = false;
  bool damaged_ever_ = false;
  uint64_t survivors_ = 0;
};

}  // namespace kvtier
