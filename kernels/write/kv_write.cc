// SPDX-License-Identifier: Apache-2.0
// The host's side of KV writes: checks, sizes, launch.
#include "kvtier/kv_write.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/common/arithmetic.h"
#include "kernels/common/refusal.h"
#include "kernels/write/kv_write.h"

namespace kvtier::kernels {
namespace {

constexpr int32_t kThreadElements = 16;  // of a row

kvt_kernel_status CheckRope(const kvt_rope& rope, int32_t head_dim) {
  if (rope.style == KVT_ROPE_NONE) return KVT_KERNEL_OK;
  return CheckRules(
      {{rope.style == KVT_ROPE_NEOX || rope.style == KVT_ROPE_GPTJ,
        "rope.style must be a known one"},
       {rope.positions != nullptr, "rope.positions must be given"},
       {rope.cos_sin != nullptr && IsAligned16(rope.cos_sin),
        "rope.cos_sin must be given, aligned to 16 bytes"},
       {rope.rotary_dim > 0 && rope.rotary_dim % 16 == 0 && rope.rotary_dim <= head_dim,
        "rope.rotary_dim must be a multiple of 16, above 0 and at most head_dim"}});
}

kvt_kernel_status CheckCache(const kvt_paged_kv& c) {
  const int64_t granule = c.dtype == KVT_FP8_E4M3 ? 16 : 8;  // elements in 16 bytes
  return CheckRules(
      {{c.key != nullptr && IsAligned16(c.key), "cache.key must be given, aligned to 16 bytes"},
       {c.value != nullptr && IsAligned16(c.value),
        "cache.value must be given, aligned to 16 bytes"},
       {c.kv_heads > 0, "cache.kv_heads must be above 0"},
       {IsPowerOfTwo(c.page_tokens) && c.page_tokens >= 16 && c.page_tokens <= 256,
        "cache.page_tokens must be a power of two from 16 to 256"},
       {(c.block_stride | c.token_stride | c.head_stride) % granule == 0,
        "cache strides must be multiples of 16 bytes"}});
}

kvt_kernel_status CheckRows(const kvt_kv_write_params& p) {
  constexpr int64_t kGranule = 8;  // elements in 16 bytes
  const int64_t inputs =
      p.key_token_stride | p.key_head_stride | p.value_token_stride | p.value_head_stride;
  const int64_t queries = p.query_token_stride | p.query_head_stride | p.query_output_token_stride |
                          p.query_output_head_stride;
  const bool no_query = p.query == nullptr;
  return CheckRules(
      {{p.key != nullptr && IsAligned16(p.key), "key must be given, aligned to 16 bytes"},
       {p.value != nullptr && IsAligned16(p.value), "value must be given, aligned to 16 bytes"},
       {p.slot_mapping != nullptr, "slot_mapping must be given"},
       {p.tokens >= 0, "tokens must not be negative"},
       {inputs % kGranule == 0, "key and value strides must be multiples of 16 bytes"},
       {IsAligned16(p.query) && IsAligned16(p.query_output),
        "query and query_output must be aligned to 16 bytes"},
       {no_query || p.query_output != nullptr, "query_output must be given where query is"},
       {no_query || p.query_heads > 0, "query_heads must be above 0 where query is given"},
       {no_query || queries % kGranule == 0, "query strides must be multiples of 16 bytes"},
       {!p.dynamic_scales || (p.cache.key_scales.values && p.cache.value_scales.values),
        "cache scales must be given where dynamic_scales is set"}});
}

kvt_kernel_status CheckIsBuilt(const kvt_kv_write_params& p) {
  const auto types =
      CheckTypes({{p.dtype == KVT_BF16 || p.dtype == KVT_FP16, "dtype", p.dtype, "bf16 and fp16"},
                  {p.cache.dtype == p.dtype || p.cache.dtype == KVT_FP8_E4M3, "cache.dtype",
                   p.cache.dtype, "the inputs' type and fp8 e4m3"}});
  if (types != KVT_KERNEL_OK) return types;
  const int32_t dim = p.cache.head_dim;
  return CheckBuilt({{IsPowerOfTwo(dim) && dim >= kThreadElements && dim <= 256, "cache.head_dim",
                      dim, "16, 32, 64, 128 and 256"}});
}

kvt_kernel_status Check(const kvt_kv_write_params* p) {
  const auto given = CheckRules({{p != nullptr, "params must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  if (const auto status = CheckCache(p->cache); status != KVT_KERNEL_OK) return status;
  if (const auto status = CheckRows(*p); status != KVT_KERNEL_OK) return status;
  if (const auto status = CheckRope(p->rope, p->cache.head_dim); status != KVT_KERNEL_OK) {
    return status;
  }
  return CheckIsBuilt(*p);
}

template <Family kFamily>
cudaError_t Launch(const kvt_kv_write_params& params, int processors, cudaStream_t stream) {
  return params.dtype == KVT_BF16
             ? LaunchKvWrite<kFamily, Operands::kBf16>(params, processors, stream)
             : LaunchKvWrite<kFamily, Operands::kFp16>(params, processors, stream);
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
  if (const auto status = Check(params); status != KVT_KERNEL_OK) return status;
  if (params->tokens == 0) return KVT_KERNEL_OK;
  const int64_t heads =
      int64_t{params->cache.kv_heads} + (params->query != nullptr ? params->query_heads : 0);
  const int64_t threads = heads * params->tokens * params->cache.head_dim / kThreadElements;
  const auto counted =
      CheckBuilt({{threads < INT32_MAX, "tokens * heads * head_dim / 16", threads, "below 2^31"}});
  if (counted != KVT_KERNEL_OK) return counted;
  Device device;
  if (const auto status = CheckDevice(&device); status != KVT_KERNEL_OK) return status;
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error = device.family == Family::kHopper
                                ? Launch<Family::kHopper>(*params, device.processors, on)
                                : Launch<Family::kAmpere>(*params, device.processors, on);
  return StatusOf(error);
}
