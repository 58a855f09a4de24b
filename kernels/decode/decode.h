// SPDX-License-Identifier: Apache-2.0
// The arguments of decode's kernels, and their launches.
//
// One launch does a step's work for one layer: blocks divide the step's tokens among themselves
// from the lengths on the device, each warp streams its slices of keys and values through shared
// memory, and of the blocks that share a sequence and head the last to finish merges their parts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/call.h"
#include "kvtier/decode.h"

namespace kvtier::kernels {

// By value, as a part of a kernel's parameter. A pair is a sequence and one of its `kv_heads` KV
// heads; a unit is 1 << unit_shift tokens of a pair.
struct StepShape {
  const int32_t* kv_lengths;  // on the device
  int32_t sequences;
  int32_t max_kv_length;
  int32_t kv_heads;
  int32_t window_tokens;  // 0: all
  int32_t split_tokens;   // 0: equal chunks; else cuts at its multiples and nowhere else
  int32_t unit_shift;
};

constexpr int kDecodeWarps = 4;
constexpr int kDecodeThreads = kDecodeWarps * 32;
constexpr int kDecodeMaxGroup = 16;

// One part's largest score (times log2 e) and its sum of exponentials, for one head.
struct DecodePartStats {
  float peak;
  float sum;
};

struct DecodeWorkspace {
  int32_t* arrivals;       // [KVT_DECODE_MAX_PAIRS], zero between launches
  DecodePartStats* stats;  // [slots, group]
  float* parts;            // [slots, group, head_dim], sums not yet divided
};

// Strides of the cache are in bytes here; a group is the query heads that share a KV head.
struct DecodeArguments {
  kvt_decode_params params;
  StepShape step;
  int64_t block_stride_bytes;
  int64_t token_stride_bytes;
  int64_t head_stride_bytes;
  int32_t group;
  int32_t page_shift;  // log2 of page_tokens
  int32_t per_token_scales;
  int32_t output_shift;  // log2 of the bytes of an element of output: 2 for fp32, else 1
  DecodeWorkspace workspace;
};

// A kernel's requirements of its launch.
struct DecodeShape {
  int tile_tokens;    // the smallest unit: one slice for each warp
  int blocks_per_sm;  // that fit, by shared memory, on the family's largest multiprocessors
  int shared_bytes;
};

// The shared memory that a block has of a multiprocessor beside shared_bytes, at most: its static
// variables, and 1 KB that the system keeps.
constexpr int kOtherSharedBytes = 2048;

// Built for head_dim 64, 128 and 256 and groups up to kDecodeMaxGroup.
template <Family kFamily, Operands kOperands>
[[nodiscard]] DecodeShape DecodeShapeFor(int head_dim);
template <Family kFamily, Operands kOperands>
[[nodiscard]] cudaError_t LaunchDecode(const DecodeArguments& arguments, int blocks,
                                       cudaStream_t stream);

}  // namespace kvtier::kernels
