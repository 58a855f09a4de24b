// SPDX-License-Identifier: Apache-2.0
// Engines that lend regions: they store, load, give up, close and open anew, with transfers under
// way, beside the clients of pools and in all of their spaces.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/fakes/aligned_bytes.h"
#include "tests/fakes/fake_published_blocks.h"
#include "tests/fakes/seeded_random.h"
#include "tests/sim/sim_client.h"

namespace kvtier {

class SimRegions {
 public:
  static constexpr uint32_t kRows = 10;
  static constexpr uint32_t kMostRegions = 4;

  SimRegions(SimContext context, SeededRandom random);

  // Sometimes one call. False if not.
  bool Step();
  // Blocks that transfers under way name are used until they have ended, and a little longer.
  void TouchPending();
  // All engines end.
  void CloseAll();
  // The daemon dies, and nothing that was under way is reported any more.
  void BeforeDeath();

  // Transfers that were reported.
  [[nodiscard]] uint64_t ended() const { return ended_; }

 private:
  struct Transfer {
    bool is_load = false;
    std::vector<BlockHash> hashes;
    std::vector<BlockIndex> rows;
    size_t named = 0;       // the first so many blocks
    uint64_t erasures = 0;  // that had ended before it
    uint32_t stream = 0;
    uint32_t first_depth = 0;
  };
  struct Region {
    SessionId session;
    uint32_t name_space = 0;
    std::shared_ptr<AlignedBytes> memory;  // the engine has it for longer than the cache
    uint64_t block_bytes = 0;
    std::vector<uint64_t> patterns;  // the engine's last pattern for each row; 0: a transfer has
                                     // it, or it is held
    std::map<BlockIndex, BlockHash> held;  // rows with the blocks that were stored from them
    std::shared_ptr<FakePublishedBlocks> published;  // null: the engine says nothing
    std::map<TransferId, Transfer> transfers;
    bool closing = false;
  };
  using Regions = std::map<PoolId, Region>;

  void Open();
  void Begin();
  // Names more blocks of a transfer that was announced, or gives up those of a store.
  void GoOn();
  void Close();
  // Closes one and opens another as soon as it is gone, which has the blocks that the first one
  // left behind.
  void Reopen();
  void CloseSession();
  // Calls that must be refused.
  void Misbehave();

  void NameSome(PoolId id, TransferId number, size_t count);
  void OnEnded(PoolId id, TransferId number, const TransferEnd& end);
  void CheckLoaded(const Region& region, const Transfer& transfer, size_t position) const;
  [[nodiscard]] Regions::iterator PickOpen();
  [[nodiscard]] std::span<std::byte> Bytes(const Region& region, BlockIndex row) const;
  void Scribble(Region* region, BlockIndex row);
  // The engine needs a row that it holds for something else; sometimes for the same hash, computed
  // with other weights.
  void LetGoOfOne();
  void CheckPatterns(const Region& region) const;

  const SimContext context_;
  SeededRandom random_;
  Regions regions_;
  std::set<PoolId> numbers_;  // of regions in this life of the daemon
  std::set<SessionId> sessions_;
  std::set<std::pair<uint32_t, uint32_t>> touched_;  // spaces and streams
  uint64_t next_session_;
  uint64_t next_transfer_ = 1;
  uint64_t next_pattern_ = 1;
  EventSource looks_;  // at what engines publish
  uint64_t ended_ = 0;
};

}  // namespace kvtier
