// SPDX-License-Identifier: Apache-2.0
// The tables of a block's life: its states, the events, and what each event asks for and changes.
// block_lifecycle.h says what they mean and applies them.
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

// One row of a table: the list that it is made of makes the enumeration of the events, too, so that
// each event is the number of its row. The event is allowed when all of `from` hold, none of
// `unless`, and the guard does.
struct Transition {
  std::string_view name;
  uint32_t from = 0;
  uint32_t unless = 0;
  uint32_t sets = 0;
  uint32_t clears = 0;
  TransitionGuard guard = TransitionGuard::kNone;
  int pins = 0;        // added to the number of copies and I/O that use the bytes
  int references = 0;  // added to the number of references of sessions and operations
};

#define KVT_EVENT_OF_ROW(event, ...) k##event,
#define KVT_TRANSITION_OF_ROW(event, ...) {.name = #event, __VA_ARGS__},

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

// X(event, row of the table), S being PoolBits.
#define KVT_POOL_EVENTS(X)                                                                      \
  X(TakePrivate, .from = S::kFree, .sets = S::kPrivate, .clears = S::kFree)                     \
  X(TakeCommitted, .from = S::kFree, .sets = S::kCommitted, .clears = S::kFree)                 \
  X(Commit, .from = S::kPrivate, .sets = S::kCommitted, .clears = S::kPrivate, .references = 1) \
  X(Quarantine, .from = S::kPrivate, .sets = S::kQuarantined, .clears = S::kPrivate)            \
  X(Resume, .from = S::kQuarantined, .sets = S::kPrivate, .clears = S::kQuarantined)            \
  X(Prefetch, .from = S::kCommitted, .unless = S::kLoading, .sets = S::kPrefetched)             \
  X(BeginLoad, .from = S::kCommitted, .unless = S::kLoading, .sets = S::kLoading,               \
    .guard = kUnpinned)                                                                         \
  X(EndLoad, .from = S::kCommitted | S::kLoading, .clears = S::kLoading | S::kPrefetched)       \
  X(Pin, .from = S::kCommitted, .unless = S::kLoading, .pins = 1)                               \
  X(Unpin, .from = S::kCommitted, .guard = kPinned, .pins = -1)                                 \
  X(Reference, .from = S::kCommitted, .references = 1)                                          \
  X(Unreference, .unless = S::kFree | S::kPrivate | S::kQuarantined, .guard = kReferenced,      \
    .references = -1)                                                                           \
  X(Orphan, .from = S::kCommitted, .unless = S::kLoading, .sets = S::kOrphaned,                 \
    .clears = S::kCommitted, .guard = kReferenced)                                              \
  X(Free, .unless = S::kFree | S::kLoading, .sets = S::kFree,                                   \
    .clears = S::kPrivate | S::kQuarantined | S::kCommitted | S::kOrphaned, .guard = kUnused)

enum class PoolEvent : uint8_t { KVT_POOL_EVENTS(KVT_EVENT_OF_ROW) };

inline constexpr auto kPoolTransitions = [] {
  using S = PoolBits;
  using enum TransitionGuard;
  return std::to_array<Transition>({KVT_POOL_EVENTS(KVT_TRANSITION_OF_ROW)});
}();

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
  static constexpr uint32_t kColdCopy = 1 << 21;  // the cold store has it, or had it until its end

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

// X(event, row of the table), S being EntryBits.
#define KVT_BLOCK_EVENTS(X)                                                                       \
  X(BeginLoad, .sets = S::kLoading)                                                               \
  X(EndLoad, .from = S::kLoading, .clears = S::kLoading | S::kOffered)                            \
  X(QueueOffload, .unless = S::kInHost | S::kOffloadQueued | S::kOffloading | S::kOffloadFailed,  \
    .sets = S::kOffloadQueued)                                                                    \
  X(CancelOffload, .from = S::kOffloadQueued, .clears = S::kOffloadQueued)                        \
  X(BeginOffload, .from = S::kOffloadQueued | S::kHostSlot, .unless = S::kInHost | S::kReading,   \
    .sets = S::kOffloading, .clears = S::kOffloadQueued)                                          \
  X(EndOffload, .from = S::kOffloading, .clears = S::kOffloading)                                 \
  X(FailOffload, .unless = S::kOffloadQueued | S::kOffloading, .sets = S::kOffloadFailed)         \
  X(AllowOffload, .clears = S::kOffloadFailed)                                                    \
  X(TakeHostSlot, .unless = S::kHostSlot | S::kInHost, .sets = S::kHostSlot)                      \
  X(FillHostSlot, .from = S::kHostSlot, .unless = S::kInHost, .sets = S::kInHost)                 \
  X(PinHost, .from = S::kInHost, .pins = 1)                                                       \
  X(UnpinHost, .from = S::kInHost, .guard = kPinned, .pins = -1)                                  \
  X(DropFromHost, .from = S::kHostSlot | S::kInHost, .unless = S::kWriting | S::kCommitting,      \
    .clears = S::kInHost | S::kWriteQueued, .guard = kUnpinned)                                   \
  X(FreeHostSlot, .from = S::kHostSlot, .unless = S::kInHost, .clears = S::kHostSlot,             \
    .guard = kUnpinned)                                                                           \
  X(BeginRead, .from = S::kHostSlot | S::kDiskSlot,                                               \
    .unless = S::kInHost | S::kReading | S::kOffloading | S::kWriting, .sets = S::kReading)       \
  X(EndRead, .from = S::kReading, .clears = S::kReading)                                          \
  X(WantPersist, .unless = S::kDiskSlot | S::kWriteQueued | S::kPersistFailed,                    \
    .sets = S::kPersistWanted)                                                                    \
  X(UnwantPersist, .unless = S::kWriteQueued, .clears = S::kPersistWanted)                        \
  X(QueueWrite, .from = S::kPersistWanted | S::kInHost, .unless = S::kWriteQueued | S::kDiskSlot, \
    .sets = S::kWriteQueued)                                                                      \
  X(CancelWrite, .from = S::kWriteQueued, .clears = S::kWriteQueued)                              \
  X(FailPersist, .unless = S::kWriting, .sets = S::kPersistFailed,                                \
    .clears = S::kWriteQueued | S::kPersistWanted)                                                \
  X(AllowPersist, .clears = S::kPersistFailed)                                                    \
  X(TakeDiskSlot, .from = S::kWriteQueued | S::kInHost, .unless = S::kDiskSlot,                   \
    .sets = S::kDiskSlot | S::kWriting)                                                           \
  X(BeginWrite, .from = S::kWriting | S::kInHost, .clears = S::kWriteQueued | S::kPersistWanted)  \
  X(EndWrite, .from = S::kDiskSlot | S::kWriting, .clears = S::kWriting)                          \
  X(FailWrite, .from = S::kDiskSlot | S::kWriting, .clears = S::kDiskSlot | S::kWriting)          \
  X(Restore, .unless = S::kHostSlot | S::kDiskSlot | S::kInFlight, .sets = S::kDiskSlot)          \
  X(Trust, .from = S::kDiskSlot, .unless = S::kWriting | S::kCommitting | S::kVerified,           \
    .sets = S::kVerified | S::kPersisted)                                                         \
  X(BeginCommit, .from = S::kDiskSlot, .unless = S::kWriting | S::kCommitting,                    \
    .sets = S::kCommitting | S::kVerified)                                                        \
  X(EndCommit, .from = S::kDiskSlot | S::kCommitting, .sets = S::kPersisted,                      \
    .clears = S::kCommitting)                                                                     \
  X(FailCommit, .from = S::kDiskSlot | S::kCommitting, .clears = S::kCommitting | S::kPersisted)  \
  X(QueueUpdate, .from = S::kDiskSlot, .unless = S::kUpdateQueued | S::kCommitting,               \
    .sets = S::kUpdateQueued)                                                                     \
  X(TakeUpdate, .from = S::kUpdateQueued, .clears = S::kUpdateQueued)                             \
  X(BeginVerify, .from = S::kDiskSlot, .unless = S::kInFlight, .sets = S::kVerifying,             \
    .guard = kUnpinned)                                                                           \
  X(EndVerify, .from = S::kVerifying, .clears = S::kVerifying)                                    \
  X(DropFromDisk, .from = S::kDiskSlot, .unless = S::kWriting | S::kCommitting,                   \
    .sets = S::kPersistFailed,                                                                    \
    .clears = S::kDiskSlot | S::kPersisted | S::kVerified | S::kUpdateQueued)                     \
  X(MoveOnDisk, .from = S::kDiskSlot | S::kInHost,                                                \
    .unless = S::kWriting | S::kCommitting | S::kWriteQueued, .sets = S::kPersistWanted,          \
    .clears = S::kDiskSlot | S::kPersisted | S::kVerified | S::kUpdateQueued | S::kPersistFailed) \
  X(Pin, .sets = S::kPinned)                                                                      \
  X(Unpin, .clears = S::kPinned)                                                                  \
  X(HintClosed, .sets = S::kClosed)                                                               \
  X(HintOnce, .sets = S::kOnce)                                                                   \
  X(ForgetHint, .clears = S::kClosed | S::kOnce)                                                  \
  X(Offer, .unless = S::kInFlight | S::kHostSlot | S::kDiskSlot, .sets = S::kOffered,             \
    .guard = kInNoPool)                                                                           \
  X(CancelOffer, .from = S::kOffered, .unless = S::kLoading, .clears = S::kOffered)               \
  X(BeginFetch, .from = S::kHostSlot | S::kOffered | S::kLoading,                                 \
    .unless = S::kInHost | S::kReading | S::kOffloading | S::kDiskSlot, .sets = S::kReading,      \
    .clears = S::kColdCopy)                                                                       \
  X(NoteColdCopy, .sets = S::kColdCopy)                                                           \
  X(ForgetColdCopy, .clears = S::kColdCopy)                                                       \
  X(Forget,                                                                                       \
    .unless = S::kInFlight | S::kHostSlot | S::kDiskSlot | S::kOffloadQueued | S::kWriteQueued |  \
              S::kPersistWanted | S::kOffered,                                                    \
    .guard = kInNoPool)

enum class BlockEvent : uint8_t { KVT_BLOCK_EVENTS(KVT_EVENT_OF_ROW) };

inline constexpr auto kBlockTransitions = [] {
  using S = EntryBits;
  using enum TransitionGuard;
  return std::to_array<Transition>({KVT_BLOCK_EVENTS(KVT_TRANSITION_OF_ROW)});
}();

}  // namespace kvtier
