// SPDX-License-Identifier: Apache-2.0
// Truths about the cache, told from the outside: who owns which block, which blocks may still be
// served, which must be there after a crash.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/fakes/seeded_random.h"
#include "tests/sim/sim_plan.h"
#include "tests/sim/sim_universe.h"
#include "tests/sim/sim_world.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

// A block as clients name it. The space's number is the simulator's own.
struct SimBlock {
  SimPool pool;
  BlockHandle handle;
  friend constexpr auto operator<=>(const SimBlock&, const SimBlock&) = default;
};

class SimOracle {
 public:
  SimOracle(const SimPlan& plan, SimWorld* world, const SimUniverse& universe)
      : plan_(plan), world_(*world), universe_(universe) {}

  // --- what happened ---
  // A private block was given out: no other client may own it.
  void OnPrivate(const SimBlock& block);
  void OnPrivateReleased(const SimBlock& block);
  // A private block's owner is gone, its process may still write.
  void OnQuarantined(const SimBlock& block);
  void OnQuarantineReleased(const SimBlock& block);
  // A private block became the hash's.
  void OnCommitted(const SimBlock& block, const BlockHash& hash);
  // A client has computed the block, known before or not.
  void OnComputed(uint32_t name_space, const BlockHash& hash);
  // An acquire that began at `asked_ms` served the hash with this block. It may have used the block
  // in any of its parts, and time passes between them.
  void OnHit(const SimBlock& block, const BlockHash& hash, int64_t asked_ms);
  [[nodiscard]] int64_t NowMs() { return world_.machine().clock.WallMs(); }
  void OnReferenceDropped(const SimBlock& block);
  // How often a block was computed, and how often something was erased.
  [[nodiscard]] uint64_t commits() const { return commits_; }
  [[nodiscard]] uint64_t erasures() const { return erasures_; }
  // All of the tenant that was computed among the first `commits` is gone, and stays so.
  void OnErased(const std::string& tenant, uint64_t commits);
  // The daemon dies while it erases the blocks that the tenant has made by then.
  void OnErasureCut(const std::string& tenant, uint32_t begun_s);
  // Blocks kept over the last death need not be all there.
  [[nodiscard]] bool erasure_cut() const { return erasure_cut_; }
  // An acquire that began after so many erasures was given the block.
  void CheckNotErased(uint32_t name_space, const BlockHash& hash, uint64_t erasures);
  // The block was held by a session that has closed. The cache gives back in parts what such a
  // session held, and each block was used until its part came.
  void OnClosing(uint32_t name_space, const BlockHash& hash) {
    closing_.emplace_back(name_space, hash);
  }
  // Blocks that processes of an earlier daemon's life hold now are theirs until they have gone.
  void OnAbsent();
  void OnAbsentGone();
  // Time has passed.
  void OnTime();
  void OnTouched(uint32_t name_space, const BlockHash& hash);
  void OnPinned(uint32_t name_space, const BlockHash& hash, int64_t until_ms);
  void OnTick();
  void OnCapsChanged() { caps_changed_ = host_caps_changed_ = true; }
  // Nothing is under way: the index has heard of all uses before the last tick.
  void OnQuiet();
  // No tier has the block any more. The daemon may later find a copy that an earlier life has left
  // in host memory; it is no younger than that life knew it to be.
  void OnLeft(const BlockKey& key);

  // One of the blocks that some client owns, if there are any: for clients that do not.
  [[nodiscard]] std::optional<SimBlock> AnyOwned(SeededRandom& random) const;

  // --- judgement ---
  // The block's memory holds what its hash says.
  void CheckBytes(const SimBlock& block, const BlockHash& hash);
  // The same of the first `parts` of `of` equal parts.
  void CheckPart(const SimBlock& block, const BlockHash& hash, uint32_t parts, uint32_t of);
  // Gauges against what clients hold, caps, sums.
  void CheckGauges() const;
  // No block of the memory class is on disk.
  void CheckMemoryClass() const;
  // The same, told from the headers of the files.
  void CheckMemoryClassAtRest();

  // --- crash ---
  void BeforeCrash();
  // Host memory that is kept has a copy of the block, with this use. Other lives may have left it
  // there and used the block elsewhere since.
  void OnCopyLeft(const SlotHeader& header, uint32_t last_use_s);
  // Blocks that were persisted and had not expired must still be there.
  enum class Source : uint8_t { kIndex, kHeaders, kNothingSure };
  void AfterRestart(Source source);
  // Blocks that were persisted, are there now and must be whole.
  [[nodiscard]] const std::vector<BlockKey>& survivors() const { return persisted_; }

 private:
  // The facts about a hash in a space.
  struct Truth {
    int64_t last_touch_ms = 0;    // nothing can have used it later
    int64_t last_use_ms = 0;      // a client certainly used it then
    int64_t ticked_use_ms = 0;    // the last use before a tick
    int64_t recorded_use_ms = 0;  // the last use of which the index had time to hear
    int64_t pinned_until_ms = 0;  // 0: certainly not pinned
    int64_t recorded_pin_ms = 0;  // the latest end that a pin can have in the next process
    int64_t computed_ms = 0;      // for the last time
    uint64_t commit = 0;          // how many there had been then
    uint64_t erased = 0;          // how many erasures there had been then; 0: not since
  };
  struct Owned {
    uint32_t generation = 0;
    enum class Kind : uint8_t { kPrivate, kQuarantined, kCommitted } kind = Kind::kPrivate;
    uint32_t references = 0;
    BlockHash hash;
  };
  using Place = std::pair<SimPool, BlockIndex>;

  [[nodiscard]] Truth& TruthOf(uint32_t name_space, const BlockHash& hash) {
    return truths_[BlockKey{NamespaceId(name_space), hash}];
  }
  // Null if the space's tenant has none.
  [[nodiscard]] const TenantQuota* QuotaOf(uint32_t name_space) const;
  [[nodiscard]] int64_t TtlMs(uint32_t name_space, const BlockHash& hash) const;
  void CheckLifetime(uint32_t name_space, const BlockHash& hash, int64_t asked_ms);
  void OnUsed(uint32_t name_space, const BlockHash& hash, int64_t use_ms);
  // The blocks that the cache reports on disk: only those that it vouches for, or also those that
  // it has merely found.
  enum class Proof : uint8_t { kRead, kNone };
  [[nodiscard]] std::vector<BlockKey> OnDisk(Proof proof) const;
  // For each block that is written down: whether it is still to be served.
  using Readable = std::unordered_map<BlockKey, bool>;
  void CheckRestored(const Readable& readable, Source source) const;
  [[nodiscard]] Readable ReadIndex();
  // The records of the index, with the space's number here.
  [[nodiscard]] std::vector<IndexRecord> IndexRecords();
  // The record's block may have been overwritten: it is of an index older than the files. The doubt
  // lasts for as long as the index has this record, and may bring it back: also when the daemon has
  // given the block up, because its deletion may have failed.
  struct Doubt {
    DiskLocation location;
    uint32_t generation = 0;
    friend bool operator==(const Doubt&, const Doubt&) = default;
  };
  void KeepDoubts();
  // A write that a crash cut short has left a header that is younger than the block's own, over
  // bytes that are not whole: of the headers alone, that one is believed.
  void NoteOvertaken();
  [[nodiscard]] Readable ReadHeaders();
  [[nodiscard]] bool Alive(uint32_t name_space, const BlockHash& hash, uint32_t created_s,
                           uint32_t last_use_s);
  [[nodiscard]] std::optional<uint32_t> NamespaceOf(const std::string& tenant,
                                                    const ModelFingerprint& model) const;
  // No tenant has more than its cap, told from what there is.
  void CheckQuotas(const CacheGauges& gauges) const;
  void CheckPoolGauges(SimPool pool, const PoolGauges& gauges, bool closing) const;

  const SimPlan& plan_;
  SimWorld& world_;
  const SimUniverse& universe_;
  std::unordered_map<BlockKey, Truth> truths_;
  std::map<Place, Owned> owned_;
  std::vector<BlockKey> persisted_;
  std::unordered_map<BlockKey, Doubt> doubtful_;
  std::unordered_set<BlockKey> overtaken_;  // as of the last crash
  // The use that the oldest copy in memory that was kept over the last crash tells of.
  std::unordered_map<BlockKey, int64_t> copy_use_ms_;
  std::vector<std::pair<uint32_t, BlockHash>> closing_;
  // The cache makes blocks young in parts, some of them in later events.
  std::unordered_set<BlockKey> touched_since_quiet_;
  // So it makes those of long prefixes with the next ticks, though nothing else is under way; but
  // none whose time has passed by then.
  std::unordered_set<BlockKey> walks_may_touch_;
  uint64_t references_ = 0;
  uint64_t commits_ = 0;
  uint64_t erasures_ = 0;
  bool erasure_cut_ = false;
  uint64_t absent_references_ = 0;
  std::map<SimPool, uint64_t> absent_blocks_;
  // A disk that was over its cap at a crash may be so again, and forget others than before.
  bool caps_changed_ = false;
  bool host_caps_changed_ = false;  // since the last crash
};

}  // namespace kvtier
