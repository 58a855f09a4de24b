// SPDX-License-Identifier: Apache-2.0
// Block operations and KV writes on the CPU: the reference for judging the kernels, and a backend
// that the host device can use. All pointers are host pointers; layouts and meanings are those of
// kvtier/block_ops.h and kvtier/kv_write.h. Any thread.
#pragma once

#include "kvtier/block_ops.h"
#include "kvtier/kv_write.h"

namespace kvtier::kernels {

void CopyBlocksReference(const kvt_copy_blocks_params& params);

// Sums in fp64.
void MergeLseReference(const kvt_merge_lse_params& params);

void KvWriteReference(const kvt_kv_write_params& params);

}  // namespace kvtier::kernels
