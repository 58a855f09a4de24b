// SPDX-License-Identifier: Apache-2.0
// Checks the disk tier of a daemon that does not run: superblocks, index against headers in both
// directions, payloads if wanted. The library behind `kvtierctl fsck`.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/enum_names.h"
#include "base/result.h"
#include "tiers/index/index_start.h"
#include "tiers/index/rocksdb_index.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {

struct FsckOptions {
  std::vector<std::filesystem::path> directories;
  // Read and check the payload of every block that the index names.
  bool verify_payloads = false;
  // Write the index anew from the headers, whatever was found.
  bool rebuild_index = false;
  RebuildOptions rebuild;                                // also says which blocks have expired
  std::function<void(const ScanProgress&)> on_progress;  // may be empty
};

// The last two are harmless: an evicted block leaves its bytes behind, an interrupted write half of
// them.
#define KVT_FSCK_FAULTS(X)                                                                       \
  X(kSuperblock, "superblock", "damaged, missing or at odds with the other files")               \
  X(kIndexUnusable, "index_unusable", "the next start will rebuild it")                          \
  X(kSlabHeader, "slab_header", "a rebuild would forget the blocks of the slab")                 \
  X(kEntryOutOfPlace, "entry_out_of_place", "the index names a place where no slot begins")      \
  X(kEntryCollision, "entry_collision", "the index names a slot for two blocks")                 \
  X(kEntryMissing, "entry_missing", "the index names a slot that holds no readable block")       \
  X(kEntryMismatch, "entry_mismatch", "the index names a slot that holds another block")         \
  X(kEntryStale, "entry_stale", "the index names an earlier write of the slot")                  \
  X(kPayloadCorrupt, "payload_corrupt", "a payload's checksum does not hold")                    \
  X(kOrphanSlot, "orphan_slot", "a block that has not expired and that the index does not name") \
  X(kSlotDamaged, "slot_damaged", "a slot that the index does not name, with a bad header")
KVT_NAMED_ENUM(FsckFault, KVT_FSCK_FAULTS)
[[nodiscard]] bool IsHarmless(FsckFault fault);

struct FsckFinding {
  FsckFault fault = FsckFault::kSuperblock;
  std::string detail;  // where and what, for a person
};

struct FsckReport {
  // The first so many of each fault are described; all are counted.
  static constexpr uint64_t kMaxFindingsPerFault = 20;

  Digest128 set_uuid;
  uint64_t epoch = 0;
  // Hashes and payloads cannot be compared without the keys, which only a daemon has.
  bool encrypted = false;
  DiskGeometry geometry;
  IndexState index_state = IndexState::kMissing;
  uint64_t slabs_uncut = 0;
  uint64_t slots = 0;
  uint64_t slots_empty = 0;
  uint64_t blocks = 0;          // slots with a valid header
  uint64_t blocks_expired = 0;  // of these
  uint64_t entries = 0;
  uint64_t entries_good = 0;  // those that agree with their slot's header
  uint64_t payloads_checked = 0;
  uint64_t payload_bytes_checked = 0;
  std::array<uint64_t, kFsckFaultCount> faults{};
  std::vector<FsckFinding> findings;
  // The counts of the index written anew, without its snapshot.
  std::optional<RebuiltIndex> rebuilt;

  [[nodiscard]] uint64_t count(FsckFault fault) const { return faults[static_cast<size_t>(fault)]; }
  // Nothing but harmless findings.
  [[nodiscard]] bool clean() const;
};

// Blocks; takes the directories' locks for as long as it runs. Changes nothing unless told to
// rebuild. Errors: those of OpenOfflineDisk (kAlreadyExists "directory_locked" while a daemon runs)
// and of RocksdbIndex::Read and Replace; kCorrupt "no_superblock" when asked to rebuild without a
// set of superblocks that tell how the files are laid out; kUnsupported "encrypted" when asked to
// rebuild the index of an encrypted set.
[[nodiscard]] Result<FsckReport> RunFsck(const FsckOptions& options);

}  // namespace kvtier
