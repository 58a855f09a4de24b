// SPDX-License-Identifier: Apache-2.0
// The headers of the disk's slabs: each must say how its slab is cut before a slot is written to
// it, because a rebuild of the index finds slots by it.
//
// A header that says something else does harm twice: the slab's blocks are not found, and a rebuild
// looks for headers where payloads lie, whose bytes clients choose. A slab that is cut anew has
// such payloads where its new slots begin: zeros replace them before the header says so.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "tiers/space/drive_health.h"
#include "tiers/state/cache_environment.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {

// Event loop only. No callback comes after the files have been destroyed.
class SlabHeaders {
 public:
  // Both are borrowed and outlive this.
  SlabHeaders(const CacheEnvironment* env, DriveHealth* health);

  // The index has blocks in slots of this size in the slab. An index that is older than the files
  // may be wrong, so that the header is read before it is relied upon.
  void Assume(uint64_t slab, uint64_t slot_bytes);

  // The drive has so many slabs from now on. REQUIRES: none beyond has blocks.
  void Resize(uint32_t drive, uint64_t slabs) { known_.Resize(drive, slabs); }

  // Calls `done` once the slab's header says what `header` does of the slots' size, at once if that
  // is known: the slab is cut anew if it said something else. Errors: those of BlockFile::Write.
  void Ensure(const SlabHeader& header, std::function<void(Status)> done);

 private:
  struct Known {
    uint64_t slot_bytes = 0;  // 0: nothing is known
    bool assumed = false;     // and the header has not been read
  };
  struct Pending {
    SlabHeader header;
    AlignedBuffer buffer;
    std::vector<std::function<void(Status)>> waiting;
    uint64_t next_slot = 0;  // to be cleared
    size_t writes_left = 0;
    Status cleared;
  };
  using Pendings = std::unordered_map<uint64_t, Pending>;

  void Read(Pending* pending);
  // Makes sure that no slot begins with bytes of an earlier cut, then writes the header.
  void Clear(Pending* pending);
  void OnCleared(Pending* pending, const Status& status);
  void WriteAt(DiskLocation location, std::span<const std::byte> page, IoDone done);
  void Write(Pending* pending);
  void Finish(uint64_t slab, const Status& status);

  const CacheEnvironment& env_;
  DriveHealth& health_;
  const AlignedBuffer zeros_{kSlabHeaderBytes};
  BySlab<Known> known_;
  Pendings pending_;  // by slab
};

}  // namespace kvtier
