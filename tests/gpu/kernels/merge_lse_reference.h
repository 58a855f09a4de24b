// SPDX-License-Identifier: Apache-2.0
// Block operations on the CPU, which those of the GPU are judged by. All pointers are host
// pointers; layouts and meanings are those of kvtier/merge_lse.h. Any thread.
#pragma once

#include "kvtier/merge_lse.h"

namespace kvtier::kernels {

// Sums in fp64.
void MergeLseReference(const kvt_merge_lse_params& params);

}  // namespace kvtier::kernels
