// SPDX-License-Identifier: Apache-2.0
// Messages about regions: memory that an engine manages, cut into blocks whose numbers the engine
// chooses, and that the daemon copies to and from. messages.h has the rules common to all,
// docs/PROTOCOL.md says what a client must keep to while blocks are transferred.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/acquired.h"
#include "base/digest.h"
#include "base/ids.h"
#include "protocol/block_messages.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"
#include "protocol/model_record.h"
#include "protocol/session_messages.h"

namespace kvtier::wire {

// How the daemon gets at a region's memory.
enum class RegionMemory : uint8_t {
  kSharedMemory = 0,  // host memory behind a descriptor that can be mapped: memfd, /dev/shm
  kVmm = 1,           // of a GPU, exported by cuMemExportToShareableHandle as a descriptor
  kCudaIpc = 2,       // of a GPU, a cudaIpcMemHandle_t; no descriptor
};

// Chosen by the client from all that two processes must agree on to use the same memory. One name
// is kept at most once for each tenant.
using KeptMemoryName = std::array<uint8_t, 32>;

// Where one part of every block lies: block b's begins at offset + b * block_stride.
struct RegionPiece {
  uint64_t offset = 0;
  uint64_t block_stride = 0;  // between blocks; not less than `bytes` if there are several
  uint64_t bytes = 0;
  friend bool operator==(const RegionPiece&, const RegionPiece&) = default;
};

// Opens a region on one group of a model. Unless the memory is kCudaIpc, its descriptor travels
// with this frame's first byte (SCM_RIGHTS), and remains the client's. The session has the region
// until it closes it or ends.
//
// Decode checks that every block lies within the memory: kInvalidArgument "bad_region_layout"; and
// kLimitExceeded "too_many_blocks", "too_many_pieces". The daemon must check that the pieces' bytes
// are together those of the group's blocks.
struct OpenRegion {
  static constexpr MessageType kType = MessageType::kOpenRegion;
  ModelId model;
  uint32_t group = 0;   // of the model's groups
  uint32_t device = 0;  // its position in DevicesReply
  RegionMemory memory = RegionMemory::kSharedMemory;
  std::array<uint8_t, 64> ipc_handle{};  // travels only if `memory` is kCudaIpc
  uint64_t bytes = 0;                    // of the whole memory
  uint32_t blocks = 0;                   // 1 to kMaxRegionBlocks
  // The region is in the memory that is kept under this name: blocks that its table vouches for are
  // a source of other regions' loads. A name that the session's process does not own is ignored.
  std::optional<KeptMemoryName> kept;
  // In the order of a block's payload: piece 0's bytes are its first. 1 to kMaxRegionPieces.
  std::vector<RegionPiece> pieces;
};

struct OpenRegionReply {
  static constexpr MessageType kType = MessageType::kOpenRegionReply;
  // LOOKUP, PIN and HINT take it as a pool's. Calls that allocate blocks refuse it:
  // kInvalidArgument "pool_is_region".
  PoolId region;
  uint64_t block_bytes = 0;  // of the group
};

// Answered when nothing touches the region's memory any more; its transfers have ended before.
struct CloseRegion {
  static constexpr MessageType kType = MessageType::kCloseRegion;
  PoolId region;
};

struct CloseRegionReply {
  static constexpr MessageType kType = MessageType::kCloseRegionReply;
};

struct StoreItem {
  uint32_t block = 0;  // of the region: its bytes are copied
  BlockHash hash;
  std::optional<BlockHash> parent;
  uint16_t tokens = 0;
  uint32_t depth = 0;
  RetentionClass retention = RetentionClass::kExtended;
  friend bool operator==(const StoreItem&, const StoreItem&) = default;
};

// Copies blocks of a region to host memory, from where they go to disk as any others. Answered by
// TRANSFER_DONE, or by ERROR if nothing was begun. `items` must not be empty: Decode says
// "empty_request".
struct Store {
  static constexpr MessageType kType = MessageType::kStore;
  PoolId region;
  uint64_t transfer = 0;         // the client's choice, not one that is under way in the region
  std::vector<StoreItem> items;  // at most kMaxStoresPerCall
  // Blocks that host memory has already are compared with these bytes, which are numbers of this
  // type, instead of being skipped unread. They count as skipped nevertheless.
  std::optional<KvDtype> compare;
};

struct LoadItem {
  uint32_t block = 0;  // of the region: its bytes are written
  BlockHash hash;
  friend bool operator==(const LoadItem&, const LoadItem&) = default;
};

// Copies cached blocks into a region: exactly those that are named, each for itself and not as a
// prefix. Answered as Store.
struct Load {
  static constexpr MessageType kType = MessageType::kLoad;
  PoolId region;
  uint64_t transfer = 0;  // as Store's
  LoadOrder order = LoadOrder::kBlocks;
  std::vector<LoadItem> items;  // at most kMaxBlocksPerCall
  // Where the layers that all items have are to be counted, in the half of the counter page whose
  // slots the client names. Only with order kLayers: else Decode says "bad_counter".
  std::optional<LoadCounter> counter;
};

// An event: request id 0. From here on the daemon does not touch the transfer's blocks in the
// region. Copied, skipped and failed ones are together all of the transfer's.
struct TransferDone {
  static constexpr MessageType kType = MessageType::kTransferDone;
  struct Failed {
    uint32_t position = 0;  // in the items
    // May have a value that MissReason has no name for: a later 1.x adds reasons.
    MissReason reason = MissReason::kUnknown;
    friend bool operator==(const Failed&, const Failed&) = default;
  };
  PoolId region;
  uint64_t transfer = 0;
  uint32_t copied = 0;
  uint32_t skipped = 0;        // of a store: a tier had the hash already
  std::vector<Failed> failed;  // in ascending order of their positions: else "bad_position"
};

}  // namespace kvtier::wire
