// SPDX-License-Identifier: Apache-2.0
// Walks all headers on disk: each slab's, and each slot's of the slabs that say how they are cut.
// It is how an index is rebuilt, since the headers are the truth.
#pragma once

#include <cstdint>
#include <functional>

#include "base/enum_names.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/parallel_reader.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

// The result of reading a header.
#define KVT_HEADER_STATES(X)                                                       \
  X(kValid, "valid", "all of it holds")                                            \
  X(kEmpty, "empty", "never written, or something else's bytes")                   \
  X(kUnreadable, "unreadable", "the disk failed")                                  \
  X(kDamaged, "damaged", "a header whose checksum, version or fields do not hold") \
  X(kMisplaced, "misplaced", "a header of another place")                          \
  X(kMisfit, "misfit",                                                             \
    "a slot's whose payload does not make up the slot; a slab's without any slot") \
  X(kEncrypted, "encrypted", "as valid, of a block whose key is not at hand: without hashes")
KVT_NAMED_ENUM(HeaderState, KVT_HEADER_STATES)

struct ScannedSlab {
  uint64_t slab = 0;
  HeaderState state = HeaderState::kEmpty;
  SlabHeader header;  // as read if valid or misfit
};

struct ScannedSlot {
  DiskLocation location;
  uint64_t slot_bytes = 0;
  HeaderState state = HeaderState::kEmpty;
  SlotHeader header;  // as read if valid, misplaced, misfit or encrypted
};

// Sees every slab, each before its slots; slots in the order of the address space.
class HeaderVisitor {
 public:
  virtual ~HeaderVisitor() = default;
  virtual void OnSlab(const ScannedSlab& slab) = 0;
  virtual void OnSlot(const ScannedSlot& slot) = 0;
};

struct ScanProgress {
  uint64_t slabs_done = 0;
  uint64_t slabs = 0;
  uint64_t slots_done = 0;
};

// Blocks; everything happens on the calling thread. `on_progress` may be empty.
void ScanHeaders(const DiskGeometry& geometry, const DiskReadFunction& read, HeaderVisitor* visitor,
                 const std::function<void(const ScanProgress&)>& on_progress = {});

}  // namespace kvtier
