// SPDX-License-Identifier: Apache-2.0
// The headers of the disk's slabs: each must say how its slab is cut before a slot is written to
// it, because a rebuild of the index finds slots by it.
//
// A header that says something else does harm twice: the slab's blocks are not found, and a rebuild
// looks for headers where payloads lie, whose bytes clients choose.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "tiers/state/cache_environment.h"
#include "tiers/storage/disk_geometry.h"

namespace kvtier {

// Event loop only. No callback comes after the files have been destroyed.
class SlabHeaders {
 public:
  // `env` is borrowed and outlives this.
  explicit SlabHeaders(const CacheEnvironment* env);

  // The index has blocks in slots of this size in the slab. An index that is older than the files
  // may be wrong, so that the header is read before it is relied upon.
  void Assume(uint64_t slab, uint64_t slot_bytes);

  // The drive has so many slabs from now on. REQUIRES: none beyond has blocks.
  void Resize(uint32_t drive, uint64_t slabs) { known_.Resize(drive, slabs); }

  // Calls `done` once the slab's header says what `header` does of the slots' size, at once if that
  // is known: the header is written if it said something else. Errors: those of BlockFile::Write.
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
  };
  using Pendings = std::unordered_map<uint64_t, Pending>;

  void Read(Pending* pending);
  void Write(Pending* pending);
  void Finish(uint64_t slab, const Status& status);

  const CacheEnvironment& env_;
  BySlab<Known> known_;
  Pendings pending_;  // by slab
};

}  // namespace kvtier
