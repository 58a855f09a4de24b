// SPDX-License-Identifier: Apache-2.0
// Callers' requests to the cache, and its answers; see cache.h for the calls.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/acquired.h"
#include "base/hang_up.h"
#include "base/hit_plan.h"
#include "base/ids.h"
#include "base/result.h"
#include "gpu/counter_page.h"
#include "gpu/device.h"
#include "tiers/types/block_key.h"
#include "tiers/types/cache_stats.h"
#include "tiers/types/published_blocks.h"
#include "tiers/types/session_identity.h"

namespace kvtier {

// --- acquire ---

// The blocks of an acquire that the store shared by hosts has, if its caller has asked it.
struct ColdHits {
  std::vector<uint32_t> positions;  // among the acquire's hashes
  // By position, as CommitRequest::depth.
  std::vector<uint32_t> depths;
};

struct AcquireRequest {
  SessionId session;
  PoolId pool;
  // Hashes of the sequence's full blocks, from block 0.
  std::vector<BlockHash> hashes;
  // Hashes of partial blocks that would do after all of `hashes`, the longest first.
  std::vector<BlockHash> partial_blocks;
  // Blocks behind `hashes` that would have been asked for, had the caller not known that the prefix
  // ends before them: counted as misses, for this reason.
  uint32_t missed_blocks = 0;
  MissReason missed_reason = MissReason::kUnknown;
  // Private blocks to allocate: all of them or the call fails.
  uint32_t new_blocks = 0;
  // Tokens of a full block, for the count of tokens that are missed.
  uint16_t block_tokens = 0;
  // Not 0: blocks in host are loaded layer by layer, over all blocks, a block being so many equal
  // layers. REQUIRES: divides the pool's block_bytes.
  uint32_t layers = 0;
  // Where the load is to be counted, if anywhere.
  std::shared_ptr<CounterPage> counters;
  // If given, the store is not asked again.
  std::optional<ColdHits> cold;
  LoadWish wish;
  // The caller's number for the request, for the tracer.
  uint64_t request_id = 0;
};

struct AcquireReply {
  // The longest cached prefix, in order, each with one reference for the session. A block found
  // below the pool may be used once the load has reached it.
  std::vector<AcquiredBlock> hits;
  LoadForecast forecast;  // nothing of a request without a wish
  // Which of `partial_blocks` hit; it is then the last of `hits`.
  std::optional<uint32_t> partial_block;
  std::vector<BlockHandle> new_blocks;
  // Nonzero if something is being loaded.
  LoadId load;
  // The load's counter: its value is how many of the hits are usable or, with layers asked for, how
  // many layers of all the hits. Null if there is no load, or no room to count it.
  std::shared_ptr<const StepCounter> counter;
  // Why the first block after `hits` was not served; kNone when everything asked for was.
  MissReason miss = MissReason::kNone;
};

// --- commit ---

struct CommitRequest {
  BlockHandle block;
  BlockHash hash;
  // The block before this one, or nothing for block 0. Need not be cached.
  std::optional<BlockHash> parent;
  uint16_t tokens = 0;
  // Position in the sequence, 0 for the first block: the deeper is evicted first.
  uint32_t depth = 0;
  RetentionClass retention = RetentionClass::kExtended;
  // If given, compared with the bytes when they are first offloaded.
  std::optional<PayloadChecksum> checksum;
};

struct CommitReply {
  // The hash was committed before: the first is kept, and `block` stays the caller's private block.
  bool duplicate = false;
};

struct PoolInfo {
  PoolId id;
  NamespaceId namespace_id;
  uint64_t generation = 0;  // differs between any two pools ever created on this host
  uint64_t bytes = 0;
  uint64_t block_bytes = 0;
  uint32_t blocks = 0;
  int fd = -1;  // owned by the pool
};

// --- regions ---

// One part of every block of a region: block b's begins at offset + b * block_stride.
struct RegionPiece {
  uint64_t offset = 0;
  uint64_t block_stride = 0;
  uint64_t bytes = 0;
};

// The numbers that a block is made of. The values are those of KvDtype.
enum class NumberFormat : uint8_t {
  kNone = 0,
  kFloat32,
  kFloat16,
  kBfloat16,
  kFloat8E4m3,
  kFloat8E5m2,
  kInt8,
};

struct KvNumbers {
  NumberFormat format = NumberFormat::kNone;
  uint32_t layers = 1;
};

// REQUIRES: the pieces of all blocks lie within the memory; together they have a block's bytes.
struct RegionMemory {
  LentMemory lent;
  DeviceIndex device;  // unless it is host memory
  uint32_t blocks = 0;
  uint16_t block_tokens = 0;  // of a full block
  std::vector<RegionPiece> pieces;
  ProcessIdentity process;  // that stores from it
  // Tells when the owner hears of no transfer's end any more, and uses the memory as it likes;
  // null: it always hears.
  std::shared_ptr<const HangUp> lender;
  // Makes the region a source of other regions' loads; null: it is none.
  std::shared_ptr<const PublishedBlocks> published;
};

// A transfer as the engine that asked for it calls it.
using TransferId = Strong<struct TransferIdTag, uint64_t>;

struct StoreRequest {
  BlockIndex block;
  BlockHash hash;
  // As CommitRequest's.
  std::optional<BlockHash> parent;
  uint16_t tokens = 0;
  uint32_t depth = 0;
  RetentionClass retention = RetentionClass::kExtended;
  // Unless the format is kNone, a block that is in host already is compared with these bytes.
  KvNumbers compare;
};

struct LoadRequest {
  BlockIndex block;
  BlockHash hash;
};

// How the blocks of a load come.
struct LayerOrder {
  // Not 0: blocks in host come layer by layer, over all blocks, a block being so many equal layers.
  // REQUIRES: divides the group's block_bytes.
  uint32_t layers = 0;
  // Where the layers that all blocks have are counted, if anywhere: in a slot that the client has
  // named. REQUIRES: counters->CanBeNamed(counter_offset).
  std::shared_ptr<CounterPage> counters;
  uint32_t counter_offset = 0;
  uint32_t counter_base = 0;
};

struct TransferEnd {
  uint32_t copied = 0;
  uint32_t skipped = 0;  // of a store: a tier had the block already
  // The positions of those that were not copied, and why.
  std::vector<std::pair<uint32_t, MissReason>> failed;
};

// The error of one handle that could not be released.
struct ReleaseError {
  uint32_t position = 0;
  Error error;
};

// Which blocks an administrator wants to be gone for good.
// Objects in the cold store that one command evicts, which may wait for them.
struct ObjectEviction {
  uint64_t left = 0;  // to be deleted
  Status ended;       // an error: the store has refused one
  std::function<void(Status)> done = {};
};

struct EraseRequest {
  std::string tenant;
  // Only blocks made in earlier hours, which count from 1970. Default: all.
  uint32_t end_hour = UINT32_MAX;
};

struct EraseReport {
  uint64_t keys = 0;  // of blocks on disk; 0 too if they are not encrypted
  // Copies of blocks that tiers had, by Tier, and what they took there.
  std::array<uint64_t, kTierCount> blocks{};
  std::array<uint64_t, kTierCount> bytes{};
  // Blocks in pools that sessions still hold: their memory is free when the last lets go.
  uint64_t referenced = 0;
  // In use without a pause, and still cached.
  uint64_t moving = 0;
};

// The result for a stretch of a verification.
struct VerifyResult {
  uint64_t next_cursor = 0;
  uint64_t checked = 0;
  uint64_t bad = 0;
  uint64_t bytes = 0;
  // Objects that the cold store does not have any more.
  uint64_t absent = 0;
  // Blocks for which disk or cold store did not answer.
  uint64_t unread = 0;
  bool finished = false;
};

}  // namespace kvtier
