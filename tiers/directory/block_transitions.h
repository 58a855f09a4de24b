// SPDX-License-Identifier: Apache-2.0
// The tables of a block's life: its states, the events, and what each event asks for and changes.
// block_lifecycle.h says what they mean and applies them; docs/ARCHITECTURE.md shows them, made
// from the rows below.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

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
  kResume,
  kPrefetch,
  kBeginLoad,
  kEndLoad,
  kPin,
  kUnpin,
  kOrphan,
  kFree,
};

inline constexpr std::array<Transition, 12> kPoolTransitions = {{
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
    {.event = "Resume",
     .from = PoolBits::kQuarantined,
     .sets = PoolBits::kPrivate,
     .clears = PoolBits::kQuarantined,
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
  static constexpr uint32_t kClosed = 1 << 18;  // not to be used again, its client says
  static constexpr uint32_t kOnce = 1 << 19;    // the same, and uses do not disprove it
  // Cold tier.
  static constexpr uint32_t kOffered = 1 << 20;  // the cold store has it, for a load about to begin
  static constexpr uint32_t kColdCopy = 1 << 21;  // was written to the cold store, or read from it

  static constexpr std::array<std::string_view, 22> kNames = {
      "loading",       "offload queued", "offloading",     "offload failed", "host slot",
      "in host",       "reading",        "persist wanted", "write queued",   "disk slot",
      "writing",       "committing",     "persisted",      "verified",       "verifying",
      "update queued", "persist failed", "pinned",         "closed",         "once",
      "offered",       "cold copy"};

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
  kHintClosed,
  kHintOnce,
  kForgetHint,
  kOffer,
  kCancelOffer,
  kBeginFetch,
  kNoteColdCopy,
  kForgetColdCopy,
  kForget,
};

inline constexpr std::array<Transition, 47> kBlockTransitions = {{
    {.event = "BeginLoad", .sets = EntryBits::kLoading, .fired_by = "Loader"},
    {.event = "EndLoad",
     .from = EntryBits::kLoading,
     .clears = EntryBits::kLoading | EntryBits::kOffered,
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
    {.event = "HintClosed", .sets = EntryBits::kClosed, .fired_by = "SequenceHints"},
    {.event = "HintOnce", .sets = EntryBits::kOnce, .fired_by = "SequenceHints"},
    {.event = "ForgetHint",
     .clears = EntryBits::kClosed | EntryBits::kOnce,
     .fired_by = "CacheState at a use, SequenceHints"},
    {.event = "Offer",
     .unless = EntryBits::kInFlight | EntryBits::kHostSlot | EntryBits::kDiskSlot,
     .sets = EntryBits::kOffered,
     .guard = TransitionGuard::kInNoPool,
     .fired_by = "ColdLookup"},
    {.event = "CancelOffer",
     .from = EntryBits::kOffered,
     .unless = EntryBits::kLoading,
     .clears = EntryBits::kOffered,
     .fired_by = "ColdLookup"},
    {.event = "BeginFetch",
     .from = EntryBits::kHostSlot | EntryBits::kOffered | EntryBits::kLoading,
     .unless =
         EntryBits::kInHost | EntryBits::kReading | EntryBits::kOffloading | EntryBits::kDiskSlot,
     .sets = EntryBits::kReading,
     .clears = EntryBits::kColdCopy,
     .fired_by = "Loader"},
    {.event = "NoteColdCopy", .sets = EntryBits::kColdCopy, .fired_by = "ColdWriter, ColdFetch"},
    {.event = "ForgetColdCopy", .clears = EntryBits::kColdCopy, .fired_by = "ColdVerifier, Erasure"},
    {.event = "Forget",
     .unless = EntryBits::kInFlight | EntryBits::kHostSlot | EntryBits::kDiskSlot |
               EntryBits::kOffloadQueued | EntryBits::kWriteQueued | EntryBits::kPersistWanted |
               EntryBits::kOffered,
     .guard = TransitionGuard::kInNoPool,
     .fired_by = "CacheState"},
}};

static_assert(kPoolTransitions.size() == static_cast<size_t>(PoolEvent::kFree) + 1);
static_assert(kBlockTransitions.size() == static_cast<size_t>(BlockEvent::kForget) + 1);

}  // namespace kvtier
