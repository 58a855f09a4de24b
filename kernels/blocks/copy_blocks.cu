// SPDX-License-Identifier: Apache-2.0
// Copies of blocks between layouts, and fills with a pattern. The host folds every dimension that
// both layouts hold densely into one run of bytes; the kernel then moves 16-byte chunks, 4 KiB to a
// warp, so that each lane has eight loads in flight whatever the layout.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/common/arithmetic.h"
#include "kernels/common/refusal.h"
#include "kernels/hopper/launch.cuh"
#include "kvtier/block_ops.h"

namespace kvtier::kernels {
// Named: CMakeLists.txt says why.
inline namespace copy_blocks {

constexpr int kThreads = 256;
constexpr int kWarpsPerCta = kThreads / 32;
constexpr int kChunkBytes = 16;
constexpr int kChunksPerLane = 8;
constexpr int kChunksPerWarp = 32 * kChunksPerLane;
constexpr int kMaxFillCtasPerBlock = 64;

struct Side {
  char* base;
  char* const* slice_bases;
  int64_t block_stride;
  int64_t layer_stride;
  int64_t kv_stride;
  int64_t token_stride;
  int64_t head_stride;
};

struct CopyPlan {
  Side source;
  Side destination;
  const int32_t* source_blocks;
  const int32_t* destination_blocks;
  uint32_t chunks_per_block;
  FastDivide warps_per_block;
  // A chunk's index within its block, innermost first: chunk of the run, head, token, K or V; the
  // layer is what remains. Folded dimensions have extent 1.
  FastDivide run_chunks;
  FastDivide heads;
  FastDivide tokens;
  FastDivide kv;
  bool uniform;  // every warp's 4 KiB lie in one run
};

struct Position {
  uint32_t layer, kv, token, head, chunk;
};

__device__ __forceinline__ Position Decode(const CopyPlan& plan, uint32_t index) {
  Position at;
  index = plan.run_chunks.Divide(index, at.chunk);
  index = plan.heads.Divide(index, at.head);
  index = plan.tokens.Divide(index, at.token);
  at.layer = plan.kv.Divide(index, at.kv);
  return at;
}

__device__ __forceinline__ char* Address(const Side& side, int64_t block, const Position& at) {
  char* base = side.slice_bases != nullptr
                   ? side.slice_bases[at.layer * 2 + at.kv]
                   : side.base + at.layer * side.layer_stride + at.kv * side.kv_stride;
  return base + block * side.block_stride + at.token * side.token_stride +
         at.head * side.head_stride + int64_t{at.chunk} * kChunkBytes;
}

__device__ __forceinline__ uint4 LoadOnce(const char* address) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

__device__ __forceinline__ void StoreOnce(char* address, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void CopyRun(const CopyPlan& plan, int64_t from, int64_t to,
                                        uint32_t first, uint32_t lane) {
  const Position at = Decode(plan, first);
  const char* source = Address(plan.source, from, at) + lane * kChunkBytes;
  char* destination = Address(plan.destination, to, at) + lane * kChunkBytes;
  uint4 held[kChunksPerLane];
#pragma unroll
  for (int i = 0; i < kChunksPerLane; ++i) held[i] = LoadOnce(source + i * 32 * kChunkBytes);
#pragma unroll
  for (int i = 0; i < kChunksPerLane; ++i) StoreOnce(destination + i * 32 * kChunkBytes, held[i]);
}

__device__ __forceinline__ void CopyPieces(const CopyPlan& plan, int64_t from, int64_t to,
                                           uint32_t first, uint32_t lane) {
  uint4 held[kChunksPerLane];
  char* destination[kChunksPerLane];
#pragma unroll
  for (int i = 0; i < kChunksPerLane; ++i) {
    const uint32_t index = first + i * 32 + lane;
    destination[i] = nullptr;
    if (index >= plan.chunks_per_block) continue;
    const Position at = Decode(plan, index);
    held[i] = LoadOnce(Address(plan.source, from, at));
    destination[i] = Address(plan.destination, to, at);
  }
#pragma unroll
  for (int i = 0; i < kChunksPerLane; ++i) {
    if (destination[i] != nullptr) StoreOnce(destination[i], held[i]);
  }
}

__global__ void __launch_bounds__(kThreads)
    CopyBlocksKernel(const __grid_constant__ CopyPlan plan, uint32_t warps) {
  const uint32_t warp = blockIdx.x * kWarpsPerCta + threadIdx.x / 32;
  if (warp >= warps) return;
  uint32_t part;
  const uint32_t pair = plan.warps_per_block.Divide(warp, part);
  const int64_t from = plan.source_blocks != nullptr ? plan.source_blocks[pair] : int64_t{pair};
  const int64_t to =
      plan.destination_blocks != nullptr ? plan.destination_blocks[pair] : int64_t{pair};
  if (from < 0 || to < 0) return;
  const uint32_t first = part * kChunksPerWarp;
  if (plan.uniform) {
    CopyRun(plan, from, to, first, threadIdx.x % 32);
  } else {
    CopyPieces(plan, from, to, first, threadIdx.x % 32);
  }
}

bool IsAligned(const kvt_block_layout& layout) {
  const int64_t bits = reinterpret_cast<int64_t>(layout.base) | layout.block_stride |
                       layout.layer_stride | layout.kv_stride | layout.token_stride |
                       layout.head_stride;
  return bits % kChunkBytes == 0;
}

kvt_kernel_status Check(const kvt_copy_blocks_params* p) {
  const auto given = CheckRules({{p != nullptr, "params must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  const auto has_base = [](const kvt_block_layout& l) { return l.base || l.slice_bases; };
  return CheckRules(
      {{has_base(p->source), "source must have a base or slice_bases"},
       {has_base(p->destination), "destination must have a base or slice_bases"},
       {IsAligned(p->source), "source addresses and strides must be multiples of 16 bytes"},
       {IsAligned(p->destination),
        "destination addresses and strides must be multiples of 16 bytes"},
       {p->blocks >= 0, "blocks must not be negative"},
       {p->layers > 0 && p->tokens > 0 && p->heads > 0, "layers, tokens and heads must be above 0"},
       {p->head_bytes > 0 && p->head_bytes % kChunkBytes == 0,
        "head_bytes must be a multiple of 16, above 0"}});
}

Side MakeSide(const kvt_block_layout& l) {
  return {static_cast<char*>(l.base),
          reinterpret_cast<char* const*>(l.slice_bases),
          l.block_stride,
          l.layer_stride,
          l.kv_stride,
          l.token_stride,
          l.head_stride};
}

// Folds dimensions from the inside for as long as both sides hold them densely.
CopyPlan MakePlan(const kvt_copy_blocks_params& p) {
  const kvt_block_layout& s = p.source;
  const kvt_block_layout& d = p.destination;
  int64_t run = p.head_bytes;
  uint32_t extents[] = {static_cast<uint32_t>(p.heads), static_cast<uint32_t>(p.tokens), 2,
                        static_cast<uint32_t>(p.layers)};
  const int64_t source_strides[] = {s.head_stride, s.token_stride, s.kv_stride, s.layer_stride};
  const int64_t destination_strides[] = {d.head_stride, d.token_stride, d.kv_stride,
                                         d.layer_stride};
  const int foldable = s.slice_bases || d.slice_bases ? 2 : 4;
  int64_t total = run;
  for (const uint32_t extent : extents) total *= extent;
  for (int i = 0; i < foldable; ++i) {
    const bool dense = source_strides[i] == run && destination_strides[i] == run;
    if (!dense && extents[i] != 1) break;
    run *= extents[i];
    extents[i] = 1;
  }
  CopyPlan plan{};
  plan.source = MakeSide(s);
  plan.destination = MakeSide(d);
  plan.source_blocks = p.source_blocks;
  plan.destination_blocks = p.destination_blocks;
  plan.chunks_per_block = static_cast<uint32_t>(total / kChunkBytes);
  plan.warps_per_block = FastDivide((plan.chunks_per_block + kChunksPerWarp - 1) / kChunksPerWarp);
  plan.run_chunks = FastDivide(static_cast<uint32_t>(run / kChunkBytes));
  plan.heads = FastDivide(extents[0]);
  plan.tokens = FastDivide(extents[1]);
  plan.kv = FastDivide(extents[2]);
  plan.uniform = run % (kChunksPerWarp * kChunkBytes) == 0;
  return plan;
}

__global__ void __launch_bounds__(kThreads)
    FillBlocksKernel(const __grid_constant__ kvt_block_list list, uint32_t pattern) {
  const int64_t id = list.block_ids != nullptr ? list.block_ids[blockIdx.x] : int64_t{blockIdx.x};
  if (id < 0) return;
  auto* block = reinterpret_cast<uint4*>(static_cast<char*>(list.base) + id * list.block_stride);
  const int64_t chunks = list.block_bytes / static_cast<int64_t>(sizeof(uint4));
  const uint4 value = make_uint4(pattern, pattern, pattern, pattern);
  for (int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x; i < chunks;
       i += int64_t{gridDim.y} * kThreads) {
    block[i] = value;
  }
}

}  // namespace copy_blocks
}  // namespace kvtier::kernels

extern "C" kvt_kernel_status kvt_copy_blocks(const kvt_copy_blocks_params* params, void* stream) {
  using namespace kvtier::kernels;
  if (const auto status = Check(params); status != KVT_KERNEL_OK) return status;
  if (params->blocks == 0) return KVT_KERNEL_OK;
  Device device;
  if (const auto status = CheckDevice(&device); status != KVT_KERNEL_OK) return status;
  const int64_t block_bytes =
      int64_t{params->head_bytes} * params->heads * params->tokens * 2 * params->layers;
  const auto small = CheckBuilt(
      {{block_bytes / kChunkBytes < INT32_MAX, "bytes of a block", block_bytes, "below 2^35"}});
  if (small != KVT_KERNEL_OK) return small;
  const CopyPlan plan = MakePlan(*params);
  const int64_t warps = int64_t{plan.warps_per_block.divisor()} * params->blocks;
  const auto few =
      CheckBuilt({{warps < INT32_MAX, "blocks * 4 KiB pieces of a block", warps, "below 2^31"}});
  if (few != KVT_KERNEL_OK) return few;
  const auto grid = static_cast<unsigned>((warps + kWarpsPerCta - 1) / kWarpsPerCta);
  const cudaError_t error =
      LaunchKernel(CopyBlocksKernel, grid, kThreads, static_cast<cudaStream_t>(stream), plan,
                   static_cast<uint32_t>(warps));
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}

extern "C" kvt_kernel_status kvt_fill_blocks(const kvt_block_list* list, uint32_t pattern,
                                             void* stream) {
  using namespace kvtier::kernels;
  const auto given = CheckRules({{list != nullptr, "list must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  const int64_t bits =
      reinterpret_cast<int64_t>(list->base) | list->block_stride | list->block_bytes;
  const auto valid =
      CheckRules({{list->base != nullptr, "base must be given"},
                  {list->blocks >= 0, "blocks must not be negative"},
                  {list->block_bytes > 0, "block_bytes must be above 0"},
                  {bits % 16 == 0, "base, block_stride and block_bytes must be multiples of 16"}});
  if (valid != KVT_KERNEL_OK) return valid;
  if (list->blocks == 0) return KVT_KERNEL_OK;
  Device device;
  if (const auto status = CheckDevice(&device); status != KVT_KERNEL_OK) return status;
  const int64_t ctas = (list->block_bytes / 16 + kThreads * 8 - 1) / (kThreads * 8);
  const dim3 grid(list->blocks,
                  static_cast<unsigned>(std::clamp<int64_t>(ctas, 1, kMaxFillCtasPerBlock)));
  const cudaError_t error = LaunchKernel(FillBlocksKernel, grid, kThreads,
                                         static_cast<cudaStream_t>(stream), *list, pattern);
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}
