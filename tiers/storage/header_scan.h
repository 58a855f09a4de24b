// SPDX-License-Identifier: Apache-2.0
// Walks all headers on disk: each slab's, and each slot's of the slabs that say how they are cut.
// It is how an index is rebuilt and checked, since the headers are the truth.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/parallel_reader.h"
#include "tiers/storage/slot_header.h"

namespace kvtier {

enum class HeaderState : uint8_t {
  kValid,
  kEmpty,       // never written, or something else's bytes
  kUnreadable,  // the disk failed
  kDamaged,     // a header whose checksum, version or fields do not hold
  kMisplaced,   // a header of another place
  kMisfit,      // a slot header whose payload does not make up the slot; a slab without any slot
  kEncrypted,   // as kValid, of a block whose key is not at hand: the header is without hashes
};
inline constexpr int kHeaderStateCount = 7;
// "valid", "empty", "unreadable", "damaged", "misplaced", "misfit", "encrypted".
[[nodiscard]] std::string_view HeaderStateName(HeaderState state);

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
