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
  kReferenced,  // they hold one, or as many as the event takes away
  kInNoPool,    // no pool holds or awaits the block, and it is unpinned
};

// One row of a table. The event is allowed when all of `from` hold, none of `unless`, and the guard
// does.
template <typename Event>
struct Transition {
  Event event;
  std::string_view name;
  uint32_t from = 0;
  uint32_t unless = 0;
  uint32_t sets = 0;
  uint32_t clears = 0;
  TransitionGuard guard = TransitionGuard::kNone;
  int pins = 0;        // added to the number of copies and I/O that use the bytes
  int references = 0;  // added to the number of references of sessions and operations
};

// True if each event stands in the row of its number, where Apply looks for it.
template <typename Event, size_t kRows>
[[nodiscard]] constexpr bool EachInItsRow(const std::array<Transition<Event>, kRows>& rows,
                                          Event last) {
  for (size_t i = 0; i < kRows; ++i) {
    if (static_cast<size_t>(rows[i].event) != i) return false;
  }
  return static_cast<size_t>(last) + 1 == kRows;
}

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
  kReference,
  kUnreference,
  kOrphan,
  kFree,
};

inline constexpr std::array<Transition<PoolEvent>, 14> kPoolTransitions = {{
    {.event = PoolEvent::kTakePrivate,
     .name = "TakePrivate",
     .from = PoolBits::kFree,
     .sets = PoolBits::kPrivate,
     .clears = PoolBits::kFree},
    {.event = PoolEvent::kTakeCommitted,
     .name = "TakeCommitted",
     .from = PoolBits::kFree,
     .sets = PoolBits::kCommitted,
     .clears = PoolBits::kFree},
    {.event = PoolEvent::kCommit,
     .name = "Commit",
     .from = PoolBits::kPrivate,
     .sets = PoolBits::kCommitted,
     .clears = PoolBits::kPrivate,
     .references = 1},
    {.event = PoolEvent::kQuarantine,
     .name = "Quarantine",
     .from = PoolBits::kPrivate,
     .sets = PoolBits::kQuarantined,
     .clears = PoolBits::kPrivate},
    {.event = PoolEvent::kResume,
     .name = "Resume",
     .from = PoolBits::kQuarantined,
     .sets = PoolBits::kPrivate,
     .clears = PoolBits::kQuarantined},
    {.event = PoolEvent::kPrefetch,
     .name = "Prefetch",
     .from = PoolBits::kCommitted,
     .unless = PoolBits::kLoading,
     .sets = PoolBits::kPrefetched},
    {.event = PoolEvent::kBeginLoad,
     .name = "BeginLoad",
     .from = PoolBits::kCommitted,
     .unless = PoolBits::kLoading,
     .sets = PoolBits::kLoading,
     .guard = TransitionGuard::kUnpinned},
    {.event = PoolEvent::kEndLoad,
     .name = "EndLoad",
     .from = PoolBits::kCommitted | PoolBits::kLoading,
     .clears = PoolBits::kLoading | PoolBits::kPrefetched},
    {.event = PoolEvent::kPin,
     .name = "Pin",
     .from = PoolBits::kCommitted,
     .unless = PoolBits::kLoading,
     .pins = 1},
    {.event = PoolEvent::kUnpin,
     .name = "Unpin",
     .from = PoolBits::kCommitted,
     .guard = TransitionGuard::kPinned,
     .pins = -1},
    {.event = PoolEvent::kReference,
     .name = "Reference",
     .from = PoolBits::kCommitted,
     .references = 1},
    {.event = PoolEvent::kUnreference,
     .name = "Unreference",
     .unless = PoolBits::kFree | PoolBits::kPrivate | PoolBits::kQuarantined,
     .guard = TransitionGuard::kReferenced,
     .references = -1},
    {.event = PoolEvent::kOrphan,
     .name = "Orphan",
     .from = PoolBits::kCommitted,
     .unless = PoolBits::kLoading,
     .sets = PoolBits::kOrphaned,
     .clears = PoolBits::kCommitted,
     .guard = TransitionGuard::kReferenced},
    {.event = PoolEvent::kFree,
     .name = "Free",
     .unless = PoolBits::kFree | PoolBits::kLoading,
     .sets = PoolBits::kFree,
     .clears =
         PoolBits::kPrivate | PoolBits::kQuarantined | PoolBits::kCommitted | PoolBits::kOrphaned,
     .guard = TransitionGuard::kUnused},
}};

// --- a block of the directory ---

// Any number of these hold at once.
struct EntryBits {
  // Pool.
  static constexpr uint32_t kLoading = 1 << 0;  // some pool awaits its bytes, mostly by way of host
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

  // The movements that refer to the entry by its row and will come back to it.
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

inline constexpr std::array<Transition<BlockEvent>, 47> kBlockTransitions = {{
    {.event = BlockEvent::kBeginLoad, .name = "BeginLoad", .sets = EntryBits::kLoading},
    {.event = BlockEvent::kEndLoad,
     .name = "EndLoad",
     .from = EntryBits::kLoading,
     .clears = EntryBits::kLoading | EntryBits::kOffered},
    {.event = BlockEvent::kQueueOffload,
     .name = "QueueOffload",
     .unless = EntryBits::kInHost | EntryBits::kOffloadQueued | EntryBits::kOffloading |
               EntryBits::kOffloadFailed,
     .sets = EntryBits::kOffloadQueued},
    {.event = BlockEvent::kCancelOffload,
     .name = "CancelOffload",
     .from = EntryBits::kOffloadQueued,
     .clears = EntryBits::kOffloadQueued},
    {.event = BlockEvent::kBeginOffload,
     .name = "BeginOffload",
     .from = EntryBits::kOffloadQueued | EntryBits::kHostSlot,
     .unless = EntryBits::kInHost | EntryBits::kReading,
     .sets = EntryBits::kOffloading,
     .clears = EntryBits::kOffloadQueued},
    {.event = BlockEvent::kEndOffload,
     .name = "EndOffload",
     .from = EntryBits::kOffloading,
     .clears = EntryBits::kOffloading},
    {.event = BlockEvent::kFailOffload,
     .name = "FailOffload",
     .unless = EntryBits::kOffloadQueued | EntryBits::kOffloading,
     .sets = EntryBits::kOffloadFailed},
    {.event = BlockEvent::kAllowOffload,
     .name = "AllowOffload",
     .clears = EntryBits::kOffloadFailed},
    {.event = BlockEvent::kTakeHostSlot,
     .name = "TakeHostSlot",
     .unless = EntryBits::kHostSlot | EntryBits::kInHost,
     .sets = EntryBits::kHostSlot},
    {.event = BlockEvent::kFillHostSlot,
     .name = "FillHostSlot",
     .from = EntryBits::kHostSlot,
     .unless = EntryBits::kInHost,
     .sets = EntryBits::kInHost},
    {.event = BlockEvent::kPinHost, .name = "PinHost", .from = EntryBits::kInHost, .pins = 1},
    {.event = BlockEvent::kUnpinHost,
     .name = "UnpinHost",
     .from = EntryBits::kInHost,
     .guard = TransitionGuard::kPinned,
     .pins = -1},
    {.event = BlockEvent::kDropFromHost,
     .name = "DropFromHost",
     .from = EntryBits::kHostSlot | EntryBits::kInHost,
     .unless = EntryBits::kWriting | EntryBits::kCommitting,
     .clears = EntryBits::kInHost | EntryBits::kWriteQueued,
     .guard = TransitionGuard::kUnpinned},
    {.event = BlockEvent::kFreeHostSlot,
     .name = "FreeHostSlot",
     .from = EntryBits::kHostSlot,
     .unless = EntryBits::kInHost,
     .clears = EntryBits::kHostSlot,
     .guard = TransitionGuard::kUnpinned},
    {.event = BlockEvent::kBeginRead,
     .name = "BeginRead",
     .from = EntryBits::kHostSlot | EntryBits::kDiskSlot,
     .unless =
         EntryBits::kInHost | EntryBits::kReading | EntryBits::kOffloading | EntryBits::kWriting,
     .sets = EntryBits::kReading},
    {.event = BlockEvent::kEndRead,
     .name = "EndRead",
     .from = EntryBits::kReading,
     .clears = EntryBits::kReading},
    {.event = BlockEvent::kWantPersist,
     .name = "WantPersist",
     .unless = EntryBits::kDiskSlot | EntryBits::kWriteQueued | EntryBits::kPersistFailed,
     .sets = EntryBits::kPersistWanted},
    {.event = BlockEvent::kUnwantPersist,
     .name = "UnwantPersist",
     .unless = EntryBits::kWriteQueued,
     .clears = EntryBits::kPersistWanted},
    {.event = BlockEvent::kQueueWrite,
     .name = "QueueWrite",
     .from = EntryBits::kPersistWanted | EntryBits::kInHost,
     .unless = EntryBits::kWriteQueued | EntryBits::kDiskSlot,
     .sets = EntryBits::kWriteQueued},
    {.event = BlockEvent::kCancelWrite,
     .name = "CancelWrite",
     .from = EntryBits::kWriteQueued,
     .clears = EntryBits::kWriteQueued},
    {.event = BlockEvent::kFailPersist,
     .name = "FailPersist",
     .unless = EntryBits::kWriting,
     .sets = EntryBits::kPersistFailed,
     .clears = EntryBits::kWriteQueued | EntryBits::kPersistWanted},
    {.event = BlockEvent::kAllowPersist,
     .name = "AllowPersist",
     .clears = EntryBits::kPersistFailed},
    {.event = BlockEvent::kTakeDiskSlot,
     .name = "TakeDiskSlot",
     .from = EntryBits::kWriteQueued | EntryBits::kInHost,
     .unless = EntryBits::kDiskSlot,
     .sets = EntryBits::kDiskSlot | EntryBits::kWriting},
    {.event = BlockEvent::kBeginWrite,
     .name = "BeginWrite",
     .from = EntryBits::kWriting | EntryBits::kInHost,
     .clears = EntryBits::kWriteQueued | EntryBits::kPersistWanted},
    {.event = BlockEvent::kEndWrite,
     .name = "EndWrite",
     .from = EntryBits::kDiskSlot | EntryBits::kWriting,
     .clears = EntryBits::kWriting},
    {.event = BlockEvent::kFailWrite,
     .name = "FailWrite",
     .from = EntryBits::kDiskSlot | EntryBits::kWriting,
     .clears = EntryBits::kDiskSlot | EntryBits::kWriting},
    {.event = BlockEvent::kRestore,
     .name = "Restore",
     .unless = EntryBits::kHostSlot | EntryBits::kDiskSlot | EntryBits::kInFlight,
     .sets = EntryBits::kDiskSlot},
    {.event = BlockEvent::kTrust,
     .name = "Trust",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kWriting | EntryBits::kCommitting | EntryBits::kVerified,
     .sets = EntryBits::kVerified | EntryBits::kPersisted},
    {.event = BlockEvent::kBeginCommit,
     .name = "BeginCommit",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kWriting | EntryBits::kCommitting,
     .sets = EntryBits::kCommitting | EntryBits::kVerified},
    {.event = BlockEvent::kEndCommit,
     .name = "EndCommit",
     .from = EntryBits::kDiskSlot | EntryBits::kCommitting,
     .sets = EntryBits::kPersisted,
     .clears = EntryBits::kCommitting},
    {.event = BlockEvent::kFailCommit,
     .name = "FailCommit",
     .from = EntryBits::kDiskSlot | EntryBits::kCommitting,
     .clears = EntryBits::kCommitting | EntryBits::kPersisted},
    {.event = BlockEvent::kQueueUpdate,
     .name = "QueueUpdate",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kUpdateQueued | EntryBits::kCommitting,
     .sets = EntryBits::kUpdateQueued},
    {.event = BlockEvent::kTakeUpdate,
     .name = "TakeUpdate",
     .from = EntryBits::kUpdateQueued,
     .clears = EntryBits::kUpdateQueued},
    {.event = BlockEvent::kBeginVerify,
     .name = "BeginVerify",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kInFlight,
     .sets = EntryBits::kVerifying,
     .guard = TransitionGuard::kUnpinned},
    {.event = BlockEvent::kEndVerify,
     .name = "EndVerify",
     .from = EntryBits::kVerifying,
     .clears = EntryBits::kVerifying},
    {.event = BlockEvent::kDropFromDisk,
     .name = "DropFromDisk",
     .from = EntryBits::kDiskSlot,
     .unless = EntryBits::kWriting | EntryBits::kCommitting,
     .sets = EntryBits::kPersistFailed,
     .clears = EntryBits::kDiskSlot | EntryBits::kPersisted | EntryBits::kVerified |
               EntryBits::kUpdateQueued},
    {.event = BlockEvent::kPin, .name = "Pin", .sets = EntryBits::kPinned},
    {.event = BlockEvent::kUnpin, .name = "Unpin", .clears = EntryBits::kPinned},
    {.event = BlockEvent::kHintClosed, .name = "HintClosed", .sets = EntryBits::kClosed},
    {.event = BlockEvent::kHintOnce, .name = "HintOnce", .sets = EntryBits::kOnce},
    {.event = BlockEvent::kForgetHint,
     .name = "ForgetHint",
     .clears = EntryBits::kClosed | EntryBits::kOnce},
    {.event = BlockEvent::kOffer,
     .name = "Offer",
     .unless = EntryBits::kInFlight | EntryBits::kHostSlot | EntryBits::kDiskSlot,
     .sets = EntryBits::kOffered,
     .guard = TransitionGuard::kInNoPool},
    {.event = BlockEvent::kCancelOffer,
     .name = "CancelOffer",
     .from = EntryBits::kOffered,
     .unless = EntryBits::kLoading,
     .clears = EntryBits::kOffered},
    {.event = BlockEvent::kBeginFetch,
     .name = "BeginFetch",
     .from = EntryBits::kHostSlot | EntryBits::kOffered | EntryBits::kLoading,
     .unless =
         EntryBits::kInHost | EntryBits::kReading | EntryBits::kOffloading | EntryBits::kDiskSlot,
     .sets = EntryBits::kReading,
     .clears = EntryBits::kColdCopy},
    {.event = BlockEvent::kNoteColdCopy, .name = "NoteColdCopy", .sets = EntryBits::kColdCopy},
    {.event = BlockEvent::kForgetColdCopy,
     .name = "ForgetColdCopy",
     .clears = EntryBits::kColdCopy},
    {.event = BlockEvent::kForget,
     .name = "Forget",
     .unless = EntryBits::kInFlight | EntryBits::kHostSlot | EntryBits::kDiskSlot |
               EntryBits::kOffloadQueued | EntryBits::kWriteQueued | EntryBits::kPersistWanted |
               EntryBits::kOffered,
     .guard = TransitionGuard::kInNoPool},
}};

static_assert(EachInItsRow(kPoolTransitions, PoolEvent::kFree));
static_assert(EachInItsRow(kBlockTransitions, BlockEvent::kForget));

}  // namespace kvtier
