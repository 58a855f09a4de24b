// SPDX-License-Identifier: Apache-2.0
// Block files on pread and pwrite by a small pool of threads, for where io_uring is not to be had.
#pragma once

#include <memory>
#include <vector>

#include "base/executor.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/io_engine.h"

namespace kvtier {

// The returned files share the threads, in the order given. `loop` must outlive them. Destroying
// the last of them cancels what still waits (kCancelled "closed") and finishes what has begun;
// every callback is posted before the destructor returns.
[[nodiscard]] std::vector<std::unique_ptr<BlockFile>> MakePreadBlockFiles(
    std::vector<EngineFile> files, const IoEngineOptions& options, EventQueue* loop);

}  // namespace kvtier
