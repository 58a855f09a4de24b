// SPDX-License-Identifier: Apache-2.0
// Messages about blocks: those that reference them, and those that only ask about them or keep
// them. messages.h has the rules common to all, tiers/cache.h describes the calls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/acquired.h"
#include "base/digest.h"
#include "base/hit_plan.h"
#include "base/ids.h"
#include "base/result.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"
#include "protocol/model_record.h"

namespace kvtier::wire {

// In which order an acquire's blocks come from host memory to the pool.
enum class LoadOrder : uint8_t {
  kBlocks = 0,  // block by block
  kLayers = 1,  // the first layer of all blocks, then the second
};

// A request for the pool of one group of a model. Hashes of several groups are those of one
// sequence, each from its first block on.
struct Acquire {
  static constexpr MessageType kType = MessageType::kAcquire;
  struct Part {
    PoolId pool;
    uint32_t new_blocks = 0;
    std::span<const BlockHash> hashes;
    std::span<const BlockHash> partial_blocks;
  };
  LoadOrder order = LoadOrder::kBlocks;
  std::vector<Part> parts;  // at most kMaxModelGroups
  // Its cost: 0 to ComputeCost::kMaxUs each; else Decode says "bad_cost".
  std::optional<LoadWish> wish = std::nullopt;
};

// Where in the session's counter page a load is counted: a u32 that stands at `base` plus the steps
// that are done, or beyond base + steps when the load has ended. Modulo 2^32. The daemon chooses it
// for a load of ACQUIRE, the client for a LOAD.
struct LoadCounter {
  uint32_t offset = 0;  // in bytes; a multiple of 4, else Decode says "bad_counter"
  uint32_t base = 0;
  uint32_t steps = 0;  // hits, or layers if these were asked for; 1 or more, else "bad_counter"
  friend bool operator==(const LoadCounter&, const LoadCounter&) = default;
};

struct AcquireReply {
  static constexpr MessageType kType = MessageType::kAcquireReply;
  // As the request's.
  struct Part {
    // Nonzero: something is being loaded, and LOAD_PROGRESS events follow.
    LoadId load;
    // Nothing: nothing is loaded, or the counter page has no free counter and only events tell.
    std::optional<LoadCounter> counter;
    // Which of `partial_blocks` hit; it is then the last of `hits`.
    std::optional<uint32_t> partial_block;
    // May have a value that MissReason has no name for: a later 1.x adds reasons.
    MissReason miss = MissReason::kNone;
    // Which of `hashes` is the first of `hits`, which are those that the prefix needs.
    uint32_t first_hit = 0;
    std::vector<AcquiredBlock> hits;
    std::vector<BlockHandle> new_blocks;
    // If there was a wish.
    std::optional<LoadForecast> forecast = std::nullopt;
  };
  std::vector<Part> parts;
};

// An event: request id 0.
struct LoadProgress {
  static constexpr MessageType kType = MessageType::kLoadProgress;
  kvtier::LoadProgress progress;
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
};

// Fire and forget, as COMMIT.
struct Release {
  static constexpr MessageType kType = MessageType::kRelease;
  PoolId pool;
  std::vector<BlockHandle> blocks;
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
};

// Asks to hold again, in a pool that this session has attached, what a session of the same process
// held there in an earlier life of the daemon.
struct Resume {
  static constexpr MessageType kType = MessageType::kResume;
  PoolId pool;
  // The identity in that session's HELLO_REPLY.
  SessionId session;
  Digest128 secret;
  // Another RESUME of the same session follows; without it, all blocks that were not claimed are
  // given back.
  bool more = false;
  // At most kMaxClaimsPerResume; each of 1 reference or more: else Decode says "bad_references".
  std::vector<ResumeClaim> claims;
};

struct ResumeReply {
  static constexpr MessageType kType = MessageType::kResumeReply;
  std::vector<ResumeOutcome> outcomes;  // one for each claim
};

struct Prefetch {
  static constexpr MessageType kType = MessageType::kPrefetch;
  PoolId pool;
  std::span<const BlockHash> hashes;
};

struct PrefetchReply {
  static constexpr MessageType kType = MessageType::kPrefetchReply;
  uint32_t count = 0;  // blocks that are in the pool or being loaded into it
};

struct Lookup {
  static constexpr MessageType kType = MessageType::kLookup;
  PoolId pool;  // or a region
  std::span<const BlockHash> hashes;
};

inline constexpr uint8_t kPresentInPool = 1 << 0;
inline constexpr uint8_t kPresentInHost = 1 << 1;
inline constexpr uint8_t kPersistedOnDisk = 1 << 2;
inline constexpr uint8_t kInColdStore = 1 << 3;  // asked for only of what no other tier has
// On disk by its header, which is all that a rebuilt index knows: a load checks the block.
inline constexpr uint8_t kUnverifiedOnDisk = 1 << 4;

struct LookupReply {
  static constexpr MessageType kType = MessageType::kLookupReply;
  std::vector<uint8_t> presence;  // one per hash asked for: the bits above
};

struct Pin {
  static constexpr MessageType kType = MessageType::kPin;
  PoolId pool;
  int64_t ttl_ms = 0;  // 0 unpins; a negative one is refused: kInvalidArgument "bad_ttl"
  std::span<const BlockHash> hashes;
};

struct PinReply {
  static constexpr MessageType kType = MessageType::kPinReply;
  uint32_t count = 0;  // of the hashes, those cached and now pinned
};

// The client's knowledge of a sequence, whose hashes these are from its first block on.
struct Hint {
  static constexpr MessageType kType = MessageType::kHint;
  PoolId pool;
  SequenceHint hint = SequenceHint::kClosed;
  // Given with kReturns; 0 with the others. Else kInvalidArgument "bad_returns_in".
  int64_t returns_in_ms = 0;
  std::span<const BlockHash> hashes;
};

struct HintReply {
  static constexpr MessageType kType = MessageType::kHintReply;
  uint32_t count = 0;  // of the hashes, those of which the hint was taken
};

// Tells which tokens blocks hold, for the events that routers get. The blocks are cached, or will
// be within half a minute: so it comes before the COMMIT or STORE whose events should carry them.
// Fire and forget, as COMMIT. One without blocks asks whether ids are wanted at all.
struct Tokens {
  static constexpr MessageType kType = MessageType::kTokens;
  struct Block {
    BlockHash hash;
    uint16_t tokens = 0;  // how many of `ids` are its own: not 0
    friend bool operator==(const Block&, const Block&) = default;
  };
  PoolId pool;                // or a region
  std::vector<Block> blocks;  // at most kMaxTokenBlocksPerCall
  // The ids of one block after the other, at most kMaxTokenIdsPerCall. As many as the blocks have
  // tokens: else Decode says "bad_token_count".
  std::vector<uint32_t> ids;
};

struct TokensReply {
  static constexpr MessageType kType = MessageType::kTokensReply;
  bool wanted = false;  // else they are not looked at, and need not be sent
  uint32_t taken = 0;   // blocks that have ids now, or will have
};

}  // namespace kvtier::wire
