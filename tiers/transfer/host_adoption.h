// SPDX-License-Identifier: Apache-2.0
// Takes over the blocks that an earlier daemon has left in host memory: each slot's header and
// payload are verified on the executor, beside the normal traffic, and a whole block becomes a
// block in host like any other. Nothing is served before that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/gate.h"
#include "base/result.h"
#include "tiers/space/host_slots.h"
#include "tiers/state/cache_state.h"
#include "tiers/storage/slot_header.h"
#include "tiers/transfer/adopted_entries.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {

// Event loop only.
class HostAdoption {
 public:
  HostAdoption(CacheState* state, HostSlots* host);

  // Starts verifications, as many as may be under way; puts adopted blocks into their order, in
  // parts. True if anything was started.
  bool Pump();
  // An administrator has evicted the block: it must not come back from a slot that has not been
  // looked at yet, also of a part of the arena that is not ready.
  void NoteEvicted(const BlockKey& key);

  // No slot of the ready part of the arena is left to verify, and no block to put in order.
  [[nodiscard]] bool Idle() const { return waiting() == 0 && stage_ != Stage::kOrdering; }
  // All of the arena has been looked at: nothing of an earlier daemon will appear any more.
  [[nodiscard]] bool Ended() const;
  [[nodiscard]] uint64_t waiting() const { return host_.kept().waiting() + slots_in_flight_; }
  // As waiting(), and the slots of memory that is not ready yet, of which some may be empty.
  [[nodiscard]] uint64_t left() const { return waiting() + host_.kept().unready(); }

 private:
  // One slot, filled in by the thread that verifies it.
  struct Slot {
    uint64_t address = 0;
    std::span<const std::byte> bytes;
    std::optional<SlotHeader> header;  // if it and the payload are whole
    bool misplaced = false;            // whole, but of another size than the slot
  };
  using Batch = std::vector<Slot>;
  // A block that was adopted, until it stands in its order.
  struct Adopted {
    EntryRef entry;
    uint32_t last_use_s = 0;
  };

  void StartBatch();
  static void Verify(Slot* slot);
  void Finish(const Batch& batch);
  void ReportDamage();
  // Why the slot cannot be adopted; nothing if it has been.
  [[nodiscard]] std::optional<AdoptionDrop> Adopt(const Slot& slot);
  // The block as an entry of its space, from its header and the table.
  [[nodiscard]] Result<BlockEntry> Describe(const Slot& slot);
  using Order = std::shared_ptr<std::vector<Adopted>>;
  void BeginOrdering();
  void OrderFrom(const Order& order, size_t next);
  void PutInOrder(const Adopted& adopted);

  CacheState& state_;
  HostSlots& host_;
  uint64_t in_flight_bytes_ = 0;
  uint64_t slots_in_flight_ = 0;
  AdoptedEntries entries_;
  std::vector<Adopted> adopted_;
  std::unordered_set<BlockKey, BlockKeyHash> evicted_;
  // kNone: nothing was found so far. kDone: everything has been looked at, and the rest was said.
  enum class Stage : uint8_t { kNone, kVerifying, kOrdering, kDone };
  Stage stage_ = Stage::kNone;
  int64_t began_ms_ = 0;
  bool end_noted_ = false;  // in the table
  Gate gate_;
};

}  // namespace kvtier
