// SPDX-License-Identifier: Apache-2.0
// What the host and the kernel for short suffixes agree on, and its launch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/prefill/prefill_plan.h"
#include "kernels/prefill/short_choice.h"

namespace kvtier::kernels {

// Rows of queries, as kTileRows: the least that the tensor cores multiply at a time.
constexpr int kShortRows = 64;
// Keys are cut between CTAs at multiples of this, the smallest page; one tensor copy brings so
// many. The plan's box_tokens must be this.
constexpr int kShortUnitKeys = 16;

// How many clusters of so many CTAs the current device holds at once, a multiprocessor for each
// CTA; 0: none, or CUDA refused.
[[nodiscard]] int ShortClustersAtOnce(int cluster_ctas);

// Head sizes of 64 and 128.
[[nodiscard]] cudaError_t LaunchPrefillShort(const PrefillPlan& plan, int clusters,
                                             int cluster_ctas, cudaStream_t stream);

}  // namespace kvtier::kernels
