// SPDX-License-Identifier: Apache-2.0
// The arguments that the host hands to the MLA decode kernel, and the sizes both agree on.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/decode/decode.h"
#include "kvtier/mla.h"

namespace kvtier::kernels {

// In the workspace, one for each set of rows; zero between launches.
struct MergeState {
  int32_t arrived;  // parts that are written
  // Runs of rows that blocks have claimed, and kMergeDeparture for each block that left without.
  int32_t claims;
};

constexpr int32_t kMergeDeparture = 1 << 16;  // more than there are runs and parts

// A block works on up to 64 query heads (the height of a matrix instruction) and 64 tokens at a
// time. The two halves of the columns, [0, 256), and [256, 512) with the rope's 64 behind them, are
// brought and given back apart.
constexpr int kMlaTileHeads = 64;
constexpr int kMlaTileTokens = 64;
constexpr int kMlaHalfDim = KVT_MLA_LATENT_DIM / 2;
constexpr int kMlaMergeThreads = 256;

// By value, as a kernel parameter: tensor maps must lie there. Block b works on tile b % head_tiles
// of the heads, so that blocks that read the same tokens run at the same time and meet in L2.
struct MlaArguments {
  CUtensorMap query_map;   // element, head, sequence
  CUtensorMap latent_map;  // column, token within the page, block
  StepShape step;          // one KV head
  const int32_t* block_table;
  int64_t table_stride;
  void* output;
  float* lse;
  int64_t output_sequence_stride;
  int64_t output_head_stride;
  int32_t q_heads;
  int32_t head_tiles;
  int32_t box_tokens;  // that one tensor copy brings: a page, or a tile if that is less
  int32_t page_shift;
  float score_scale;  // takes scores to logarithms of base 2, without the latent cache's scales
  int32_t tables_settled;
  kvt_scales scales;        // of an fp8 latent cache
  int32_t scales_by_token;  // else one for all
  MergeState* merges;       // [KVT_MLA_MAX_PAIRS], zero between launches
  float* part_lse;          // [slots, q_heads]
  float* parts;             // [slots, q_heads, 512], divided
};

// Launches head_tiles * chunks blocks. Over an fp8 latent cache `query` is the type of queries and
// output; else it is that of the operands.
template <Operands kOperands>
[[nodiscard]] cudaError_t LaunchMla(kvt_dtype query, const MlaArguments& arguments, int blocks,
                                    cudaStream_t stream);

}  // namespace kvtier::kernels
