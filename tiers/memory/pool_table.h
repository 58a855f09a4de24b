// SPDX-License-Identifier: Apache-2.0
// The table beside the memory of a pool that outlives the daemon: whose pool it is, which of its
// blocks hold what, and which processes have it mapped, in which sessions.
//
// The daemon may die between any two instructions. So a block counts only while its entry says
// kCached or kReferenced; it says so only once its bytes are whole, and no longer before the first
// of them may change. The fields that identify the block carry a checksum, for unlike a slot in
// host or on disk a block has no header. A dead daemon's table is believed no more than a disk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "tiers/memory/adoption_count.h"
#include "tiers/types/block_key.h"
#include "tiers/types/session_identity.h"

namespace kvtier {

// Facts that do not change as long as the table lives.
struct PoolDescription {
  NamespaceIdentity identity;
  uint64_t generation = 0;    // of the pool, as clients know it
  uint64_t memory_bytes = 0;  // of its memory
  uint64_t device_bytes = 0;  // the cap of all pools of the device
  uint64_t memory_id = 0;     // the number of the memory's file; 0 where it is none
  uint32_t blocks = 0;
  uint32_t driver_version = 0;            // 0: host memory
  std::array<uint8_t, 16> device_uuid{};  // zeros: host memory
  Digest128 boot_id;                      // of the machine
  friend bool operator==(const PoolDescription&, const PoolDescription&) = default;
};

enum class PoolEntryState : uint8_t {
  kFree,
  kHeld,        // a process, a copy or a load may write to it
  kPrivate,     // one session's own (HolderOf): nothing but its process writes to it
  kCached,      // whole; no session references it
  kReferenced,  // whole; some session does, and may read it after the daemon's death
  kDamaged,     // the entry holds what no daemon writes
};

// The record of a block that is whole.
struct PoolEntryFacts {
  BlockHash hash;
  std::optional<BlockHash> parent;
  std::optional<PayloadChecksum> checksum;  // as the client that committed it gave it
  uint32_t depth = 0;
  uint16_t tokens = 0;
  RetentionClass retention = RetentionClass::kExtended;
  uint32_t uses = 0;
  uint32_t last_use_s = 0;  // Unix time, as the following
  uint32_t created_s = 0;
  uint32_t pinned_until_s = 0;  // as in the index
  friend bool operator==(const PoolEntryFacts&, const PoolEntryFacts&) = default;
};

// Event loop only; other processes may have the memory mapped, but do not write to it.
class PoolTable : public AdoptionCount {
 public:
  // Sessions that a table can name. A pool with more of them is not adopted.
  static constexpr uint32_t kMaxSessions = 1023;

  [[nodiscard]] static uint64_t BytesFor(uint32_t blocks);
  // Makes an empty table. REQUIRES: `memory` is all zeros, page-aligned, and BytesFor(blocks) long.
  static void Format(const PoolDescription& description, std::span<std::byte> memory);
  // Reads the table that an earlier daemon left. Errors, all kCorrupt: "damaged", "version",
  // "other_boot", "not_ready" (see SetReady), "adoption_unfinished" (daemon after daemon has died
  // of its contents).
  [[nodiscard]] static Result<PoolDescription> Read(std::span<const std::byte> memory,
                                                    const Digest128& boot_id);
  // REQUIRES: Format was called, or Read without an error; the memory outlives the table.
  explicit PoolTable(std::span<std::byte> memory);

  // --- writing ---
  // The memory is all zeros: before, it may hold what no client may see.
  void SetReady();
  void SetFree(BlockIndex block);
  // From now on the block's bytes may change. Handles with this generation name it.
  void Hold(BlockIndex block, uint32_t generation);
  // Nothing but the process of the session of this number writes to the block. REQUIRES: held, or
  // private to another session.
  void SetHolder(BlockIndex block, uint32_t session);
  // The block is whole. REQUIRES: held or private.
  void Complete(BlockIndex block, const PoolEntryFacts& facts, bool referenced);
  // REQUIRES: whole, as for the following.
  void SetReferenced(BlockIndex block, bool referenced);
  // Uses, times and retention of `facts`; the rest stays.
  void Update(BlockIndex block, const PoolEntryFacts& facts);
  // The session's process may read and write the pool from now on. Returns the number under which
  // the session stands in the table; nothing if there is no room, after which the pool will not be
  // adopted.
  [[nodiscard]] std::optional<uint32_t> AddSession(const SessionIdentity& session);
  void RemoveSession(uint32_t number);

  // --- reading ---
  [[nodiscard]] PoolEntryState StateOf(BlockIndex block) const;
  [[nodiscard]] bool Whole(BlockIndex block) const;
  [[nodiscard]] uint32_t GenerationOf(BlockIndex block) const;
  // The number of the session that the block is private to; nothing if the entry is damaged.
  // REQUIRES: private.
  [[nodiscard]] std::optional<uint32_t> HolderOf(BlockIndex block) const;
  // Times and uses may be any number. Nothing if the entry is damaged. REQUIRES: whole.
  [[nodiscard]] std::optional<PoolEntryFacts> FactsOf(BlockIndex block) const;
  struct Session {
    uint32_t number = 0;
    SessionIdentity identity;
  };
  // Errors: kCorrupt "damaged"; "clients_unknown" if not all that have the pool mapped can be told.
  [[nodiscard]] Result<std::vector<Session>> Sessions() const;

 private:
  struct Head;
  struct SessionRecord;
  struct State;
  struct Record;
  [[nodiscard]] Head& head() const;
  [[nodiscard]] SessionRecord* sessions() const;
  [[nodiscard]] State& StateRecord(BlockIndex block) const;
  [[nodiscard]] Record& RecordOf(BlockIndex block) const;
  [[nodiscard]] static uint64_t Seal(BlockIndex block, const Record& record);
  void StoreState(BlockIndex block, PoolEntryState state, RetentionClass retention);

  const std::span<std::byte> memory_;
  const uint32_t blocks_;
  std::vector<uint32_t> free_sessions_;  // numbers, the next to be given last
};

}  // namespace kvtier
