// SPDX-License-Identifier: Apache-2.0
// The result of an acquire: the cache, the protocol and the client library share this one shape of
// a hit, of a load's progress and of a miss reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace kvtier {

// Why a block that was asked for was not served: X(enumerator, name in C, name, meaning). The
// position in the list is the number on the wire, so new reasons are appended. Metrics' labels, the
// names of kvt_miss_name() and the table of docs/PROTOCOL.md are made from this list or checked
// against it.
#define KVT_MISS_REASONS(X)                                                                        \
  X(kNone, NONE, "none", "everything asked for was served")                                        \
  X(kUnknown, UNKNOWN, "unknown", "never seen, or forgotten")                                      \
  X(kExpired, EXPIRED, "expired", "its time to live had passed")                                   \
  X(kPoolFull, POOL_FULL, "pool_full", "cached below, but the pool had no free block for it")      \
  X(kHostFull, HOST_FULL, "host_full", "on disk, but host memory had no free slot for it")         \
  X(kReadError, READ_ERROR, "read_error", "the disk failed")                                       \
  X(kChecksumMismatch, CHECKSUM_MISMATCH, "checksum_mismatch", "the bytes were not those written") \
  X(kIdentityMismatch, IDENTITY_MISMATCH, "identity_mismatch", "the slot held another block")      \
  X(kCopyFailed, COPY_FAILED, "copy_failed", "the device failed")                                  \
  X(kCancelled, CANCELLED, "cancelled", "the load was cancelled")                                  \
  X(kErased, ERASED, "erased", "erased, or the key that it was encrypted with is gone")            \
  X(kSlowerThanComputing, SLOWER_THAN_COMPUTING, "slower_than_computing",                          \
    "cached, but to compute it takes less time than to load it")                                   \
  X(kAfterDeadline, AFTER_DEADLINE, "after_deadline",                                              \
    "cached, but it would be loaded later than the request's deadline")                            \
  X(kDistrusted, DISTRUSTED, "distrusted", "engines differ over KV of this tenant and model")

enum class MissReason : uint8_t {
#define KVT_X(enumerator, c_name, name, meaning) enumerator,
  KVT_MISS_REASONS(KVT_X)
#undef KVT_X
};

struct MissReasonText {
  std::string_view name;
  std::string_view meaning;
};
inline constexpr auto kMissReasonTexts = std::to_array<MissReasonText>({
#define KVT_X(enumerator, c_name, name, meaning) {name, meaning},
    KVT_MISS_REASONS(KVT_X)
#undef KVT_X
});
inline constexpr int kMissReasonCount = kMissReasonTexts.size();

// "checksum_mismatch"; "invalid" for a value that has no name here, as one that a daemon of a later
// minor version sent.
[[nodiscard]] constexpr std::string_view MissReasonName(MissReason reason) {
  const auto index = static_cast<size_t>(reason);
  return index < kMissReasonTexts.size() ? kMissReasonTexts[index].name : "invalid";
}

// A block of the cached prefix, with one reference for the session that acquired it.
struct AcquiredBlock {
  BlockHandle handle;
  // Where it was found; kPool means usable now. A block that another device's pool holds comes
  // from there or through host memory, and counts as found in host.
  Tier tier = Tier::kPool;
  uint16_t tokens = 0;
  friend bool operator==(const AcquiredBlock&, const AcquiredBlock&) = default;
};

// How far a load is, in prefix order: the first `ready` of the acquire's hits are usable. When
// `finished`, nothing follows; if then fewer than all hits are ready, the block at `ready` could
// not be loaded for the reason `miss`: the bytes from there on must not be used, and the references
// to those blocks are still to be released.
struct LoadProgress {
  LoadId load;
  uint32_t ready = 0;
  bool finished = false;
  MissReason miss = MissReason::kNone;
  friend bool operator==(const LoadProgress&, const LoadProgress&) = default;
};

// A block that a session held in an earlier life of the daemon, as its client names it.
struct ResumeClaim {
  BlockHandle block;
  uint32_t references = 1;  // of the session's; not looked at if the block is private
  friend bool operator==(const ResumeClaim&, const ResumeClaim&) = default;
};

enum class ResumeOutcome : uint8_t {
  kLost = 0,        // not held, and its bytes may change
  kPrivate = 1,     // private to the session again, as the client left it
  kReferenced = 2,  // committed, and referenced by the session as often as was claimed
};

}  // namespace kvtier
