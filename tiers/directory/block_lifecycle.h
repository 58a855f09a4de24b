// SPDX-License-Identifier: Apache-2.0
// The life of a block: every state that it can be in, in each tier and between them, and every
// event that takes it from one to the next. docs/ARCHITECTURE.md shows the tables, made from the
// rows below.
//
// A block is known by one BlockEntry, however many tiers hold it, and by one PoolBlock for each
// pool that holds it or awaits it. Their states are private. All that changes them is Apply(event),
// which ends the process if the event is not allowed in the state that the block is in: a block of
// which the cache has lost track must not be served. The decisions that depend on several states
// (may this copy be forgotten? is anything in flight?) are queries beside them.
//
// Everything here belongs to the event loop.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// A condition of a transition beside the states themselves.
enum class TransitionGuard : uint8_t {
  kNone,
  kUnpinned,    // no copy or I/O uses the bytes
  kPinned,      // one does
  kUnused,      // unpinned, and no session or operation holds a reference
  kReferenced,  // one does
  kInNoPool,    // no pool holds or awaits the block, and it is unpinned
};

// One event. It is allowed when all of `from` hold, none of `unless`, and the guard does.
struct Transition {
  std::string_view event;
  uint32_t from = 0;
  uint32_t unless = 0;
  uint32_t sets = 0;
  uint32_t clears = 0;
  TransitionGuard guard = TransitionGuard::kNone;
  int pins = 0;  // how the event changes the number of copies and I/O that use the bytes
  std::string_view fired_by;
};

// --- a block of a pool ---

// Exactly one of these holds at any time.
enum class PoolBlockState : uint8_t {
  kFree,
  kPrivate,      // writable by one session, found by no lookup
  kQuarantined,  // was private to a session that ended while its process may still write
  kCommitted,    // belongs to a directory entry; immutable once its bytes have arrived
  kOrphaned,     // its load failed; found by no lookup, kept until its references are dropped
};
inline constexpr int kPoolBlockStateCount = 5;

struct PoolBits {
  static constexpr uint32_t kFree = 1 << 0, kPrivate = 1 << 1, kQuarantined = 1 << 2,
                            kCommitted = 1 << 3, kOrphaned = 1 << 4;
  static constexpr uint32_t kLoading = 1 << 5;     // awaits its bytes
  static constexpr uint32_t kPrefetched = 1 << 6;  // loading though nothing referenced it
  static constexpr std::array<std::string_view, 7> kNames = {
      "free", "private", "quarantined", "committed", "orphaned", "loading", "prefetched"};
};

enum class PoolEvent : uint8_t {
  kTakePrivate,
  kTakeCommitted,
  kCommit,
  kQuarantine,
  kPrefetch,
  kBeginLoad,
  kEndLoad,
  kPin,
  kUnpin,
  kOrphan,
  kFree,
};

inline constexpr std::array<Transition, 11> kPoolTransitions = {{
    {.event = "TakePrivate",
     .from = PoolBits::kFree,
     .sets = PoolBits::kPrivate,
     .clears = PoolBits::kFree,
     .fired_by = "SessionTable"},
    {.event = "TakeCommitted",
     .from = PoolBits::kFree,
     .sets = PoolBits::kCommitted,
     .clears = PoolBits::kFree,
     .fired_by = "Acquirer, RegionTransfers"},
    {.event = "Commit",
     .from = PoolBits::kPrivate,
     .sets = PoolBits::kCommitted,
     .clears = PoolBits::kPrivate,
     .fired_by = "SessionTable"},
    {.event = "Quarantine",
     .from = PoolBits::kPrivate,
     .sets = PoolBits::kQuarantined,
     .clears = PoolBits::kPrivate,
     .fired_by = "SessionTable"},
    {.event = "Prefetch",
     .from = PoolBits::kCommitted,
     .unless = PoolBits::kLoading,
     .sets = PoolBits::kPrefetched,
     .fired_by = "Acquirer"},
    {.event = "BeginLoad",
     .from = PoolBits::kCommitted,
     .unless = PoolBits::kLoading,
     .sets = PoolBits::kLoading,
     .guard = TransitionGuard::kUnpinned,
     .fired_by = "Loader"},
    {.event = "EndLoad",
     .from = PoolBits::kCommitted | PoolBits::kLoading,
     .clears = PoolBits::kLoading | PoolBits::kPrefetched,
     .fired_by = "Loader"},
    {.event = "Pin",
     .from = PoolBits::kCommitted,
     .unless = PoolBits::kLoading,
     .pins = 1,
     .fired_by = "Offloader"},
    {.event = "Unpin",
     .from = PoolBits::kCommitted,
     .guard = TransitionGuard::kPinned,
     .pins = -1,
     .fired_by = "Offloader"},
    {.event = "Orphan",
     .from = PoolBits::kCommitted,
     .unless = PoolBits::kLoading,
     .sets = PoolBits::kOrphaned,
     .clears = PoolBits::kCommitted,
     .guard = TransitionGuard::kReferenced,
     .fired_by = "CacheState"},
    {.event = "Free",
     .unless = PoolBits::kFree | PoolBits::kLoading,
     .sets = PoolBits::kFree,
     .clears =
         PoolBits::kPrivate | PoolBits::kQuarantined | PoolBits::kCommitted | PoolBits::kOrphaned,
     .guard = TransitionGuard::kUnused,
     .fired_by = "PoolSpace, SessionTable, CacheState"},
}};

// --- a block of the directory ---

// Any number of these hold at once.
struct EntryBits {
  // Pool.
  static constexpr uint32_t kLoading = 1 << 0;        // some pool awaits its bytes, by way of host
  static constexpr uint32_t kOffloadQueued = 1 << 1;  // pool to host, waiting for its turn
  static constexpr uint32_t kOffloading = 1 << 2;     // pool to host, copying
  static constexpr uint32_t kOffloadFailed = 1 << 3;  // not tried again unasked; may be dropped
  // Host.
  static constexpr uint32_t kHostSlot = 1 << 4;  // has a slot of the arena
  static constexpr uint32_t kInHost = 1 << 5;    // the slot holds header and bytes
  // Disk.
  static constexpr uint32_t kReading = 1 << 6;         // disk to host
  static constexpr uint32_t kPersistWanted = 1 << 7;   // to be written once it is in host
  static constexpr uint32_t kWriteQueued = 1 << 8;     // host to disk, waiting for its turn
  static constexpr uint32_t kDiskSlot = 1 << 9;        // has a slot on disk
  static constexpr uint32_t kWriting = 1 << 10;        // host to disk
  static constexpr uint32_t kCommitting = 1 << 11;     // on disk, index entry not yet durable
  static constexpr uint32_t kPersisted = 1 << 12;      // data and index entry are durable
  static constexpr uint32_t kVerified = 1 << 13;       // the payload on disk is known to be whole
  static constexpr uint32_t kVerifying = 1 << 14;      // being read back by a verification
  static constexpr uint32_t kUpdateQueued = 1 << 15;   // the index is to learn of a later use
  static constexpr uint32_t kPersistFailed = 1 << 16;  // not written before its next use
  // All tiers.
  static constexpr uint32_t kPinned = 1 << 17;  // by an administrator or a client, for a time

  static constexpr std::array<std::string_view, 18> kNames = {
      "loading",       "offload queued", "offloading",     "offload failed", "host slot",
      "in host",       "reading",        "persist wanted", "write queued",   "disk slot",
      "writing",       "committing",     "persisted",      "verified",       "verifying",
      "update queued", "persist failed", "pinned"};

  // What refers to the entry by its row and will come back to it.
  static constexpr uint32_t kInFlight =
      kLoading | kOffloading | kReading | kWriting | kCommitting | kVerifying;
};

enum class BlockEvent : uint8_t {
  kBeginLoad,
  kEndLoad,
  kQueueOffload,
  kCancelOffload,
  kBeginOffload,
  kEndOffload,
  kFailOffload,
  kAllowOffload,
  kTakeHostSlot,
  kFillHostSlot,
  kPinHost,
  kUnpinHost,
  kDropFromHost,
  kFreeHostSlot,
  kBeginRead,
  kEndRead,
  kWantPersist,
  kUnwantPersist,
  kQueueWrite,
  kCancelWrite,
  kFailPersist,
  kAllowPersist,
  kTakeDiskSlot,
  kBeginWrite,
  kEndWrite,
  kFailWrite,
  kRestore,
  kTrust,
  kBeginCommit,
  kEndCommit,
  kFailCommit,
  kQueueUpdate,
  kTakeUpdate,
  kBeginVerify,
  kEndVerify,
  kDropFromDisk,
  kPin,
  kUnpin,
  kForget,
};

inline constexpr std::array<Transition, 39> kBlockTransitions = {{
    {.event = "BeginLoad", .sets = EntryBits::kLoading, .fired_by = "Loader"},
    {.event = "EndLoad",
     .from = EntryBits::kLoading,
     .clears = EntryBits::kLoading,
     .fired_by = "Loader, of the last pool that awaited it"},
    {.event = "QueueOffload",
     .unless = EntryBits::kInHost | EntryBits::kOffloadQueued | EntryBits::kOffloading |
               EntryBits::kOffloadFailed,
     .sets = EntryBits::kOffloadQueued,
     .fired_by = "Offloader"},
    {.event = "CancelOffload",
     .from = EntryBits::kOffloadQueued,
     .clears = EntryBits::kOffloadQueued,
     .fired_by = "Offloader"},
    {.event = "BeginOffload",
     .from = EntryBits::kOffloadQueued | EntryBits::kHostSlot,
     .unless = EntryBits::kInHost | EntryBits::kReading,
     .sets = EntryBits::kOffloading,
     .clears = EntryBits::kOffloadQueued,
     .fired_by = "Offloader"},
    {.event = "EndOffload",
     .from = EntryBits::kOffloading,
     .clears = EntryBits::kOffloading,
     .fired_by = "Offloader"},
    {.event = "FailOffload",
     .unless = EntryBits::kOffloadQueued | EntryBits::kOffloading,
     .sets = EntryBits::kOffloadFailed,
     .fired_by = "Offloader"},
    {.event = "AllowOffload",
     .clears = EntryBits::kOffloadFailed,
     .fired_by = "Offloader for a load, CacheState when no pool has it any more"},
    {.event = "TakeHostSlot",
     .unless = EntryBits::kHostSlot | EntryBits::kInHost,
     .sets = EntryBits::kHostSlot,
     .fired_by = "HostSlots"},
    {.event = "FillHostSlot",
     .from = EntryBits::kHostSlot,
     .unless = EntryBits::kInHost,
     .sets = EntryBits::kInHost,
     .fired_by = "HostSlots, after an offload, a read or an adoption"},
    {.event = "PinHost", .from = EntryBits::kInHost, .pins = 1, .fired_by = "Loader, Persister"},
    {.event = "UnpinHost",
     .from = EntryBits::kInHost,
     .guard = TransitionGuard::kPinned,
     .pins = -1,
     .fired_by = "Loader, Persister"},
    {.event = "DropFromHost",
     .from = EntryBits::kHostSlot | EntryBits::kInHost,
     .unless = EntryBits::kWriting | EntryBits::kCommitting,
     .clears = EntryBits::kInHost | EntryBits::kWriteQueued,
     .guard = TransitionGuard::kUnpinned,
     .fired_by = "HostSlots"},
    {.event = "FreeHostSlot",
     .from = EntryBits::kHostSlot,
     .unless = EntryBits::kInHost,
     .clears = EntryBits::kHostSlot,
     .guard = TransitionGuard::kUnpinned,
     .fired_by = "HostSlots"},
    {.event = "BeginRead",
     .from = EntryBits::kHostSlot | EntryBits::kDiskSlot,
     .unless =
         EntryBits::kInHost | EntryBits::kReading | EntryBits::kOffloading | EntryBits::kWriting,
     .sets = EntryBits::kReading,
     .fired_by = "Loader"},
    {.event = "EndRead",
     .from = EntryBits::kReading,
     .clears = EntryBits::kReading,
     .fired_by = "Loader"},
    {.event = "WantPersist",
     .unless = EntryBits::kDiskSlot | EntryBits::kWriteQueued | EntryBits::kPersistFailed,
     .sets = EntryBits::kPersistWanted,
     .fired_by = "Persister"},
    {.event = "UnwantPersist",
     .unless = EntryBits::kWriteQueued,
     .clears = EntryBits::kPersistWanted,
     .fired_by = "Persister, CacheState"},
    {.event = "QueueWrite",
     .from = EntryBits::kPersistWanted | EntryBits::kInHost,
     .unless = EntryBits::kWriteQueued | EntryBits::kDiskSlot,
     .sets = EntryBits::kWriteQueued,
     .fired_by = "Persister"},
    {.event = "CancelWrite",
     .from = EntryBits::kWriteQueued,
     .clears = EntryBits::kWriteQueued,
     .fired_by = "Persister"},
    {.event = "FailPersist",
     .unless = EntryBits::kWriting,
     .sets = EntryBits::kPersistFailed,
     .clears = EntryBits::kWriteQueued | EntryBits::kPersistWanted,
     .fired_by = "Persister"},
    {.event = "AllowPersist",
     .clears = EntryBits::kPersistFailed,
     .fired_by = "CacheState at a use"},
    {.event = "TakeDiskSlot",
     .from = EntryBits::kWriteQueued | EntryBits::kInHost,
     .unless = EntryBits::kDiskSlot,
     .sets = EntryBits::kDiskSlot | EntryBits::kWriting,
     .fired_by = "DiskSlots"},
    {.event = "BeginWrite",
     .from = EntryBits::kWriting | EntryBits::kInHost,
     .clears = EntryBits::kWriteQueued | EntryBits::kPersistWanted,
     .fired_by = "Persister"},
    {.event = "EndWrite",
     .from = EntryBits::kDiskSlot | EntryBits::kWriting,
     .clears = EntryBits::kWriting,
     .fired_by = "DiskSlots"},
    {.event = "FailWrite",
     .from = EntryBits::kDiskSlot | EntryBits::kWriting,
     .clears = EntryBits::kDiskSlot | EntryBits::kWriting,
     .fired_by = "DiskSlots"},
    {.event = "Restore",
     .unless = EntryBits::kHostSlot | EntryBits::kDiskSlot | EntryBits::kInFlight,
     .sets = EntryBits::kDiskSlot,
     .fired_by = "DiskSlots at the start"},
    {.event = "Trust",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kWriting | EntryBits::kCommitting | EntryBits::kVerified,
     .sets = EntryBits::kVerified | EntryBits::kPersisted,
     .fired_by = "DiskSlots, once the payload of a restored block is known to be whole"},
    {.event = "BeginCommit",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kWriting | EntryBits::kCommitting,
     .sets = EntryBits::kCommitting | EntryBits::kVerified,
     .fired_by = "IndexCommitter"},
    {.event = "EndCommit",
     .from = EntryBits::kDiskSlot | EntryBits::kCommitting,
     .sets = EntryBits::kPersisted,
     .clears = EntryBits::kCommitting,
     .fired_by = "IndexCommitter"},
    {.event = "FailCommit",
     .from = EntryBits::kDiskSlot | EntryBits::kCommitting,
     .clears = EntryBits::kCommitting | EntryBits::kPersisted,
     .fired_by = "IndexCommitter"},
    {.event = "QueueUpdate",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kUpdateQueued | EntryBits::kCommitting,
     .sets = EntryBits::kUpdateQueued,
     .fired_by = "CacheState"},
    {.event = "TakeUpdate",
     .from = EntryBits::kUpdateQueued,
     .clears = EntryBits::kUpdateQueued,
     .fired_by = "IndexCommitter"},
    {.event = "BeginVerify",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kInFlight,
     .sets = EntryBits::kVerifying,
     .guard = TransitionGuard::kUnpinned,
     .fired_by = "Verifier"},
    {.event = "EndVerify",
     .from = EntryBits::kVerifying,
     .clears = EntryBits::kVerifying,
     .fired_by = "Verifier"},
    {.event = "DropFromDisk",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kWriting | EntryBits::kCommitting,
     .sets = EntryBits::kPersistFailed,
     .clears = EntryBits::kDiskSlot | EntryBits::kPersisted | EntryBits::kVerified |
               EntryBits::kUpdateQueued,
     .fired_by = "DiskSlots"},
    {.event = "Pin", .sets = EntryBits::kPinned, .fired_by = "Retention"},
    {.event = "Unpin", .clears = EntryBits::kPinned, .fired_by = "Retention"},
    {.event = "Forget",
     .unless = EntryBits::kInFlight | EntryBits::kHostSlot | EntryBits::kDiskSlot |
               EntryBits::kOffloadQueued | EntryBits::kWriteQueued | EntryBits::kPersistWanted,
     .guard = TransitionGuard::kInNoPool,
     .fired_by = "CacheState"},
}};

static_assert(kPoolTransitions.size() == static_cast<size_t>(PoolEvent::kFree) + 1);
static_assert(kBlockTransitions.size() == static_cast<size_t>(BlockEvent::kForget) + 1);

// Ends the process with a message that names the event and the states.
[[noreturn]] void FailPoolTransition(PoolEvent event, uint32_t bits);
[[noreturn]] void FailBlockTransition(BlockEvent event, uint32_t bits);
// Both tables, as docs/ARCHITECTURE.md shows them.
[[nodiscard]] std::string LifecycleMarkdown();

// One block of a pool. PoolBlocks applies the events, because it counts the states.
struct PoolBlock {
  EntryIndex entry = kNoEntry;  // kCommitted only
  uint32_t generation = 0;
  uint32_t references = 0;  // over all sessions and operations; kCommitted and kOrphaned
  BlockIndex previous = kNoBlock, next = kNoBlock;
  uint32_t since_ds = 0;  // kCommitted: when its bytes came here (CacheState::NowDs)
  SessionId owner;        // kPrivate and kQuarantined
  PoolPlace elsewhere;    // kCommitted: the next of the pools that hold the entry

  [[nodiscard]] PoolBlockState state() const {
    constexpr uint32_t kStates = (1u << kPoolBlockStateCount) - 1;
    return static_cast<PoolBlockState>(std::countr_zero(bits_ & kStates));
  }
  [[nodiscard]] bool loading() const { return (bits_ & PoolBits::kLoading) != 0; }
  [[nodiscard]] bool prefetched() const { return (bits_ & PoolBits::kPrefetched) != 0; }
  [[nodiscard]] uint32_t pins() const { return pins_; }

  // --- queries ---
  // A committed block that nothing holds and whose bytes are here: it may be evicted.
  [[nodiscard]] bool cached() const {
    return state() == PoolBlockState::kCommitted && references == 0 && !loading();
  }
  // It was prefetched, and nothing has asked for it since: its load goes after all others.
  [[nodiscard]] bool CanWait() const { return prefetched() && references == 0; }
  // What asked for it has gone: its load is cancelled.
  [[nodiscard]] bool Cancelled() const { return !prefetched() && references == 0; }

 private:
  friend class PoolBlocks;
  void Apply(PoolEvent event) {
    const Transition& row = kPoolTransitions[static_cast<size_t>(event)];
    if ((bits_ & row.from) != row.from || (bits_ & row.unless) != 0 || !Allows(row.guard)) {
      FailPoolTransition(event, bits_);
    }
    bits_ = static_cast<uint8_t>((bits_ & ~row.clears) | row.sets);
    pins_ = static_cast<uint8_t>(pins_ + row.pins);
  }
  [[nodiscard]] bool Allows(TransitionGuard guard) const {
    switch (guard) {
      case TransitionGuard::kUnpinned:
        return pins_ == 0;
      case TransitionGuard::kPinned:
        return pins_ > 0;
      case TransitionGuard::kUnused:
        return pins_ == 0 && references == 0;
      case TransitionGuard::kReferenced:
        return references > 0;
      default:
        return true;
    }
  }

  uint8_t bits_ = PoolBits::kFree;
  uint8_t pins_ = 0;  // copies in flight
};
static_assert(sizeof(PoolBlock) <= 40);

// A slot's address in the host arena, in units of 4 KiB (so that an entry stays small; 16 TiB
// reach).
using HostSlot = Strong<struct HostSlotTag, uint32_t>;
inline constexpr HostSlot kNoHostSlot{UINT32_MAX};
inline constexpr uint64_t kHostSlotUnit = 4096;

// One block of the directory. CacheState applies the events, because it counts some states.
struct BlockEntry {
  BlockHash hash;
  NamespaceId namespace_id;
  // The first of the pools that hold it; each names the next (PoolBlock::elsewhere).
  PoolPlace place;
  HostSlot host_slot = kNoHostSlot;  // set exactly while kHostSlot holds
  uint32_t disk_generation = 0;
  DiskLocation disk;  // valid exactly while kDiskSlot holds
  uint32_t depth = 0;
  uint32_t created_s = 0;
  uint32_t last_use_s = 0;
  uint32_t indexed_use_s = 0;  // last_use_s as the index knows it
  uint32_t uses = 0;
  uint16_t tokens = 0;
  RetentionClass retention = RetentionClass::kExtended;
  uint8_t recent_uses = 1;  // since its bytes were computed or read from disk; 255: or more

  // --- states ---
  [[nodiscard]] bool loading() const { return Has(EntryBits::kLoading); }
  [[nodiscard]] bool offload_queued() const { return Has(EntryBits::kOffloadQueued); }
  [[nodiscard]] bool offloading() const { return Has(EntryBits::kOffloading); }
  [[nodiscard]] bool offload_failed() const { return Has(EntryBits::kOffloadFailed); }
  [[nodiscard]] bool has_host_slot() const { return Has(EntryBits::kHostSlot); }
  [[nodiscard]] bool in_host() const { return Has(EntryBits::kInHost); }
  [[nodiscard]] bool reading() const { return Has(EntryBits::kReading); }
  [[nodiscard]] bool persist_wanted() const { return Has(EntryBits::kPersistWanted); }
  [[nodiscard]] bool write_queued() const { return Has(EntryBits::kWriteQueued); }
  [[nodiscard]] bool has_disk_slot() const { return Has(EntryBits::kDiskSlot); }
  [[nodiscard]] bool writing() const { return Has(EntryBits::kWriting); }
  [[nodiscard]] bool committing() const { return Has(EntryBits::kCommitting); }
  [[nodiscard]] bool persisted() const { return Has(EntryBits::kPersisted); }
  [[nodiscard]] bool verified() const { return Has(EntryBits::kVerified); }
  [[nodiscard]] bool verifying() const { return Has(EntryBits::kVerifying); }
  [[nodiscard]] bool update_queued() const { return Has(EntryBits::kUpdateQueued); }
  [[nodiscard]] bool persist_failed() const { return Has(EntryBits::kPersistFailed); }
  [[nodiscard]] bool pinned() const { return Has(EntryBits::kPinned); }
  // Copies and I/O in flight that use the host slot.
  [[nodiscard]] uint32_t host_pins() const { return bits_ >> kPinShift; }

  // --- queries: where it is ---
  // In some pool, or on its way there.
  [[nodiscard]] bool in_pool() const { return place != kNoPlace; }
  [[nodiscard]] bool on_disk() const { return has_disk_slot() && !writing(); }
  // The index has a record of it, or had one when the daemon started.
  [[nodiscard]] bool in_index() const { return persisted() || (on_disk() && !verified()); }
  // Restored from a header alone: nothing vouches for the payload before it is read once.
  [[nodiscard]] bool unverified_on_disk() const {
    return on_disk() && !verified() && !committing();
  }
  // No tier holds it, and nothing in flight will come back to it.
  [[nodiscard]] bool gone() const {
    return !in_pool() && !has_host_slot() && !has_disk_slot() && !busy();
  }
  // Something in flight refers to the entry: it must not be forgotten yet.
  [[nodiscard]] bool busy() const { return Has(EntryBits::kInFlight) || host_pins() > 0; }
  // Some movement will fill a host slot with it, now or when its turn has come.
  [[nodiscard]] bool expected_in_host() const {
    return Has(EntryBits::kLoading | EntryBits::kOffloadQueued | EntryBits::kOffloading);
  }

  // --- queries: what may be done with it ---
  // It should be written to disk before host forgets it.
  [[nodiscard]] bool NeedsPersist(bool has_disk) const {
    return retention == RetentionClass::kExtended && has_disk && !persist_failed() && !on_disk();
  }
  // Dropping it from a pool loses nothing, for what host could not take will never be cleaner.
  [[nodiscard]] bool CleanInPool() const {
    return in_host() || ((persisted() || offload_failed()) && !offloading());
  }
  // A pool may drop it, though it may be pinned: `pools_with_bytes` hold it.
  [[nodiscard]] bool MayLeavePool(int pools_with_bytes) const {
    return !pinned() || in_host() || on_disk() || pools_with_bytes > 1;
  }
  [[nodiscard]] bool EvictableFromHost(bool has_disk) const {
    return in_host() && host_pins() == 0 && !committing() && !NeedsPersist(has_disk);
  }
  // The same at the cost of a copy that was to be written to disk.
  [[nodiscard]] bool DroppableFromHost() const {
    return in_host() && host_pins() == 0 && !pinned() && !writing() && !committing();
  }
  // Pinned, and host has the only copy that there will be.
  [[nodiscard]] bool KeptInHost(bool has_disk, bool in_ready_pool) const {
    return in_host() && pinned() && !on_disk() && !in_ready_pool && !NeedsPersist(has_disk);
  }
  // Its host slot is yet to be taken, or in use for a load: it is not the coldest after all.
  [[nodiscard]] bool PassesThroughHost() const {
    return !has_host_slot() || (loading() && (!in_host() || host_pins() > 0));
  }
  [[nodiscard]] bool EvictableFromDisk() const {
    return on_disk() && !pinned() &&
           !Has(EntryBits::kLoading | EntryBits::kReading | EntryBits::kCommitting |
                EntryBits::kVerifying);
  }

 private:
  friend class CacheState;
  static constexpr int kPinShift = 24;
  static_assert(EntryBits::kNames.size() <= kPinShift);

  // True if any of `bits` holds.
  [[nodiscard]] bool Has(uint32_t bits) const { return (bits_ & bits) != 0; }
  void Apply(BlockEvent event) {
    const Transition& row = kBlockTransitions[static_cast<size_t>(event)];
    if ((bits_ & row.from) != row.from || (bits_ & row.unless) != 0 || !Allows(row.guard)) {
      FailBlockTransition(event, bits_);
    }
    bits_ = (bits_ & ~row.clears) | row.sets;
    bits_ += static_cast<uint32_t>(row.pins) << kPinShift;
  }
  [[nodiscard]] bool Allows(TransitionGuard guard) const {
    switch (guard) {
      case TransitionGuard::kUnpinned:
        return host_pins() == 0;
      case TransitionGuard::kPinned:
        return host_pins() > 0;
      case TransitionGuard::kInNoPool:
        return !in_pool() && host_pins() == 0;
      default:
        return true;
    }
  }

  uint32_t bits_ = 0;  // EntryBits, and above them the pins

 public:
  uint32_t host_since_ds = 0;  // when its bytes came to host (CacheState::NowDs)
};
static_assert(sizeof(BlockEntry) <= 88);

}  // namespace kvtier
