// SPDX-License-Identifier: Apache-2.0
// Changes the sizes of the files of a disk tier that serves.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "tiers/storage/superblock.h"

namespace kvtier {

// Slabs by drive; 0 for a drive that is not there.
using DriveSlabs = std::array<uint64_t, kMaxDrives>;

class DriveSizer {
 public:
  virtual ~DriveSizer() = default;
  // Gives the drives' files so many slabs, durably; one call at a time. `done` is called on the
  // event loop with the slabs that each file has then: more than wanted where a file could not be
  // cut, fewer where its file system has no room for them above the free-space floor. REQUIRES:
  // nothing uses a slab beyond.
  virtual void Resize(const DriveSlabs& wanted, std::function<void(const DriveSlabs&)> done) = 0;
};

}  // namespace kvtier
