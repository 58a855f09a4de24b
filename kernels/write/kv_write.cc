// The host's side of KV writes: checks, sizes, launch.
#include "kvtier/kv_write.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>

#include "kernels/alignment.h"
#include "kernels/write/kv_write_launch.h"

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

uint32_t RunsOf(int32_t heads, int heads_of_a_run) {
  return static_cast<uint32_t>((heads + heads_of_a_run - 1) / heads_of_a_run);
}

}  // namespace

WritePlan PlanHeads(const kvt_kv_write_params& params, int heads, int first_blocks) {
  const uint32_t lanes = params.cache.head_dim / kThreadElements;
  const uint32_t kv_runs = RunsOf(params.cache.kv_heads, heads);
  const uint32_t units =
      kv_runs + (params.query != nullptr ? RunsOf(params.query_heads, 2 * heads) : 0);
  return {.params = params,
          .units = FastDivide(units),
          .kv_runs = kv_runs,
          .threads = static_cast<uint32_t>(params.tokens) * units * lanes,
          .first_blocks = static_cast<uint32_t>(first_blocks),
          .rotary_dim = params.rope.style == KVT_ROPE_NONE
                            ? 0
                            : static_cast<uint32_t>(params.rope.rotary_dim),
          .lane_shift = std::countr_zero(lanes),
          .page_shift = std::countr_zero(static_cast<uint32_t>(params.cache.page_tokens))};
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
  int device = 0;
  int processors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return KVT_KERNEL_LAUNCH_FAILED;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error = params->dtype == KVT_BF16 ? LaunchKvWriteBf16(*params, processors, on)
                                                      : LaunchKvWriteFp16(*params, processors, on);
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}
