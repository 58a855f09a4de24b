// SPDX-License-Identifier: Apache-2.0
// The host's side of KV writes: checks, sizes, launch.
#include "kvtier/kv_write.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/common/arithmetic.h"
#include "kernels/write/kv_write.h"

namespace kvtier::kernels {
namespace {

constexpr int32_t kThreadElements = 16;  // of a row

bool IsValidRope(const kvt_rope& rope, int32_t head_dim) {
  if (rope.style == KVT_ROPE_NONE) return true;
  return (rope.style == KVT_ROPE_NEOX || rope.style == KVT_ROPE_GPTJ) && rope.positions &&
         rope.cos_sin && IsAligned16(rope.cos_sin) && rope.rotary_dim > 0 &&
         rope.rotary_dim % 16 == 0 && rope.rotary_dim <= head_dim;
}

bool AreAligned(const kvt_kv_write_params& p) {
  const kvt_paged_kv& c = p.cache;
  constexpr int64_t kGranule = 8;  // elements in 16 bytes
  const int64_t inputs =
      p.key_token_stride | p.key_head_stride | p.value_token_stride | p.value_head_stride;
  const int64_t queries = p.query_token_stride | p.query_head_stride | p.query_output_token_stride |
                          p.query_output_head_stride;
  const int64_t cache = c.block_stride | c.token_stride | c.head_stride;
  return IsAligned16(p.key) && IsAligned16(p.value) && IsAligned16(p.query) &&
         IsAligned16(p.query_output) && IsAligned16(c.key) && IsAligned16(c.value) &&
         inputs % kGranule == 0 && (p.query == nullptr || queries % kGranule == 0) &&
         cache % (c.dtype == KVT_FP8_E4M3 ? 2 * kGranule : kGranule) == 0;
}

bool IsValid(const kvt_kv_write_params& p) {
  const kvt_paged_kv& c = p.cache;
  const bool tables = p.key && p.value && p.slot_mapping && c.key && c.value;
  const bool counts = p.tokens >= 0 && c.kv_heads > 0 && IsPowerOfTwo(c.page_tokens) &&
                      c.page_tokens >= 16 && c.page_tokens <= 256;
  const bool query = p.query == nullptr || (p.query_output != nullptr && p.query_heads > 0);
  const bool scales = !p.dynamic_scales || (c.key_scales.values && c.value_scales.values);
  return tables && counts && query && scales && AreAligned(p) && IsValidRope(p.rope, c.head_dim);
}

bool IsBuilt(const kvt_kv_write_params& p) {
  const bool sixteen_bit = p.dtype == KVT_BF16 || p.dtype == KVT_FP16;
  const bool fits = p.cache.dtype == p.dtype || p.cache.dtype == KVT_FP8_E4M3;
  return sixteen_bit && fits && IsPowerOfTwo(p.cache.head_dim) &&
         p.cache.head_dim >= kThreadElements && p.cache.head_dim <= 256;
}

uint32_t UpToWhole(uint32_t count, uint32_t unit) { return (count + unit - 1) / unit; }

}  // namespace

WritePlan PlanWrite(const kvt_kv_write_params& params, const WriteShape& shape, int processors) {
  const kvt_paged_kv& cache = params.cache;
  const uint32_t lanes = cache.head_dim / kThreadElements;
  const uint32_t kv_runs = UpToWhole(cache.kv_heads, shape.heads);
  const uint32_t query_runs =
      params.query != nullptr ? UpToWhole(params.query_heads, 2 * shape.query_pairs) : 0;
  const uint32_t kv_threads = params.tokens * kv_runs * lanes;
  const uint32_t query_threads = params.tokens * query_runs * lanes;
  constexpr int64_t kInputBytes = 2;
  const int64_t cache_bytes = cache.dtype == KVT_FP8_E4M3 ? 1 : kInputBytes;
  return {.params = params,
          .kv_runs = FastDivide(kv_runs),
          .query_runs = FastDivide(std::max(query_runs, 1U)),
          .kv_threads = kv_threads,
          .query_threads = query_threads,
          .kv_blocks = UpToWhole(kv_threads, shape.threads),
          .query_blocks = UpToWhole(query_threads, shape.threads),
          .first_blocks = static_cast<uint32_t>(processors * shape.blocks),
          .rotary_dim = params.rope.style == KVT_ROPE_NONE
                            ? 0
                            : static_cast<uint32_t>(params.rope.rotary_dim),
          .lane_shift = std::countr_zero(lanes),
          .page_shift = std::countr_zero(static_cast<uint32_t>(cache.page_tokens)),
          .value_step = kv_runs * params.value_head_stride * kInputBytes,
          .key_step = kv_runs * params.key_head_stride * kInputBytes,
          .cache_step = kv_runs * cache.head_stride * cache_bytes,
          .query_step = 2 * params.query_head_stride * kInputBytes,
          .output_step = 2 * params.query_output_head_stride * kInputBytes};
}

}  // namespace kvtier::kernels

kvt_kernel_status kvt_kv_write(const kvt_kv_write_params* params, void* stream) {
  using namespace kvtier::kernels;
  if (params == nullptr || !IsValid(*params)) return KVT_KERNEL_INVALID_ARGUMENT;
  if (!IsBuilt(*params)) return KVT_KERNEL_UNSUPPORTED;
  if (params->tokens == 0) return KVT_KERNEL_OK;
  const int64_t heads =
      int64_t{params->cache.kv_heads} + (params->query != nullptr ? params->query_heads : 0);
  if (heads * params->tokens * params->cache.head_dim / kThreadElements >= INT32_MAX) {
    return KVT_KERNEL_UNSUPPORTED;
  }
  Device device;
  if (!QueryDevice(&device)) return KVT_KERNEL_LAUNCH_FAILED;
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error = params->dtype == KVT_BF16
                                ? LaunchKvWrite<Operands::kBf16>(*params, device.processors, on)
                                : LaunchKvWrite<Operands::kFp16>(*params, device.processors, on);
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}
