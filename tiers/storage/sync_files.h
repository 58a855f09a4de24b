// SPDX-License-Identifier: Apache-2.0
// Makes writes to several files durable.
#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "tiers/storage/block_file.h"

namespace kvtier {

// Calls `done` once, after every file has answered, since syncs cannot be called back, with what
// each said, in their order. REQUIRES: one file at least. Event loop only.
void SyncFiles(const std::vector<BlockFile*>& files,
               std::function<void(const std::vector<Status>&)> done);

}  // namespace kvtier
