// SPDX-License-Identifier: Apache-2.0
// Block files on io_uring: one ring and one thread for all of them, registered files and memory.
#pragma once

#include <memory>
#include <vector>

#include "base/executor.h"
#include "base/result.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/io_engine.h"

namespace kvtier {

// The returned files share the ring, in the order given. `loop` must outlive them. Destroying the
// last of them cancels what still waits (kCancelled "closed") and waits for what the kernel is
// working on; every callback is posted before the destructor returns.
// Takes `*files` only on success. Errors: kUnsupported "io_uring_refused" when the kernel or its
// policy denies a ring.
[[nodiscard]] Result<std::vector<std::unique_ptr<BlockFile>>> MakeUringBlockFiles(
    std::vector<EngineFile>* files, const IoEngineOptions& options, EventQueue* loop);

}  // namespace kvtier
