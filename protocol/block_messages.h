// SPDX-License-Identifier: Apache-2.0
// Messages about blocks; see messages.h for the rules common to all and tiers' documentation for
// what the calls mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"

namespace kvtier::wire {

struct Acquire {
  static constexpr MessageType kType = MessageType::kAcquire;
  PoolId pool;
  uint32_t new_blocks = 0;
  std::span<const BlockHash> hashes;
  std::span<const BlockHash> partial_blocks;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Acquire> Decode(std::span<const std::byte> payload);
};

struct AcquireHit {
  BlockHandle handle;
  uint16_t tokens = 0;
  Tier tier = Tier::kPool;
  friend bool operator==(const AcquireHit&, const AcquireHit&) = default;
};

struct AcquireReply {
  static constexpr MessageType kType = MessageType::kAcquireReply;
  // Nonzero: LOAD_PROGRESS events follow.
  LoadId load;
  // One of the miss reasons that docs/PROTOCOL.md lists; unknown values are to be taken as "some
  // reason", so that new ones can be added.
  uint8_t miss_reason = 0;
  // Which of `partial_blocks` hit; it is then the last of `hits`.
  std::optional<uint32_t> partial_block;
  std::vector<AcquireHit> hits;
  std::vector<BlockHandle> new_blocks;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<AcquireReply> Decode(std::span<const std::byte> payload);
};

// In which order an acquire's blocks come from host memory to the pool.
enum class LoadOrder : uint8_t {
  kBlocks = 0,  // block by block
  kLayers = 1,  // the first layer of all blocks, then the second
};

// ACQUIRE for sessions that have counters (kFeatureLoadCounters).
struct AcquireCounted {
  static constexpr MessageType kType = MessageType::kAcquireCounted;
  LoadOrder order = LoadOrder::kBlocks;
  Acquire acquire;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<AcquireCounted> Decode(std::span<const std::byte> payload);
};

// Where in the session's counter page a load is counted: a u32 that stands at `base` plus the steps
// that are done, or beyond base + steps when the load has ended. Modulo 2^32.
struct LoadCounter {
  uint32_t offset = 0;  // in bytes; a multiple of 4
  uint32_t base = 0;
  uint32_t steps = 0;  // hits, or layers if these were asked for; not 0
  friend bool operator==(const LoadCounter&, const LoadCounter&) = default;
};

struct AcquireCountedReply {
  static constexpr MessageType kType = MessageType::kAcquireCountedReply;
  // Nothing: nothing is loaded, or only events tell of it.
  std::optional<LoadCounter> counter;
  AcquireReply acquired;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<AcquireCountedReply> Decode(std::span<const std::byte> payload);
};

// An event: request id 0.
struct LoadProgress {
  static constexpr MessageType kType = MessageType::kLoadProgress;
  LoadId load;
  // The first `ready` of the acquire's hits are usable.
  uint32_t ready = 0;
  // Nothing follows for this load. If then not all hits are ready, the block at `ready` could not
  // be loaded: bytes from there on must not be used, their references are still to be released.
  bool finished = false;
  uint8_t miss_reason = 0;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<LoadProgress> Decode(std::span<const std::byte> payload);
};

struct CommitItem {
  BlockHandle block;
  BlockHash hash;
  std::optional<BlockHash> parent;
  uint16_t tokens = 0;
  uint32_t depth = 0;
  RetentionClass retention = RetentionClass::kExtended;
  std::optional<PayloadChecksum> checksum;
  friend bool operator==(const CommitItem&, const CommitItem&) = default;
};

// Fire and forget: COMMIT_REPLY comes only if some item was a duplicate or failed, or if the frame
// has kFlagWantReply.
struct Commit {
  static constexpr MessageType kType = MessageType::kCommit;
  PoolId pool;
  std::vector<CommitItem> items;

  void Encode(uint64_t request_id, bool want_reply, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Commit> Decode(std::span<const std::byte> payload);
};

enum class CommitOutcome : uint8_t {
  kDuplicate = 1,  // the hash was committed before; the block stays the session's private block
  kFailed = 2,
};

struct CommitReply {
  static constexpr MessageType kType = MessageType::kCommitReply;
  struct Item {
    // In the COMMIT's items; ascending.
    uint32_t position = 0;
    CommitOutcome outcome = CommitOutcome::kDuplicate;
    // kFailed only; the context does not travel.
    ErrorCode code = ErrorCode::kInternal;
    std::string reason;
    friend bool operator==(const Item&, const Item&) = default;
  };
  // Items not mentioned were committed.
  std::vector<Item> items;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<CommitReply> Decode(std::span<const std::byte> payload);
};

// Fire and forget, as COMMIT.
struct Release {
  static constexpr MessageType kType = MessageType::kRelease;
  PoolId pool;
  std::vector<BlockHandle> blocks;

  void Encode(uint64_t request_id, bool want_reply, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Release> Decode(std::span<const std::byte> payload);
};

struct ReleaseReply {
  static constexpr MessageType kType = MessageType::kReleaseReply;
  struct Item {
    uint32_t position = 0;
    ErrorCode code = ErrorCode::kInternal;
    std::string reason;
    friend bool operator==(const Item&, const Item&) = default;
  };
  // Handles not mentioned were released.
  std::vector<Item> errors;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<ReleaseReply> Decode(std::span<const std::byte> payload);
};

}  // namespace kvtier::wire
