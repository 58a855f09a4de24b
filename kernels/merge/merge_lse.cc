// SPDX-License-Identifier: Apache-2.0
// The host's side of merges: checks, sizes, launch.
#include "kernels/merge/merge_lse.h"

#include <cstdint>

#include "kernels/common/refusal.h"

namespace kvtier::kernels {
namespace {

bool IsFloat(kvt_dtype dtype) {
  return dtype == KVT_FP32 || dtype == KVT_BF16 || dtype == KVT_FP16;
}

kvt_kernel_status Check(const kvt_merge_lse_params& p) {
  const auto valid = CheckRules(
      {{p.partials != nullptr && IsAligned16(p.partials),
        "partials must be given, aligned to 16 bytes"},
       {p.partial_lse != nullptr, "partial_lse must be given"},
       {p.output != nullptr && IsAligned16(p.output), "output must be given, aligned to 16 bytes"},
       {p.parts > 0 && p.heads > 0, "parts and heads must be above 0"},
       {p.tokens >= 0, "tokens must not be negative"},
       {p.head_dim > 0 && p.head_dim % 8 == 0, "head_dim must be a multiple of 8, above 0"},
       {(p.part_stride | p.output_token_stride | p.output_head_stride) % 8 == 0,
        "strides must be multiples of 8 elements"}});
  if (valid != KVT_KERNEL_OK) return valid;
  return CheckTypes(
      {{IsFloat(p.partial_dtype), "partial_dtype", p.partial_dtype, "fp32, bf16 and fp16"},
       {IsFloat(p.output_dtype), "output_dtype", p.output_dtype, "fp32, bf16 and fp16"}});
}

}  // namespace

kvt_kernel_status LaunchMergeLse(const kvt_merge_lse_params& params, const int32_t* first_token,
                                 const int32_t* token_limit, cudaStream_t stream) {
  if (const auto status = Check(params); status != KVT_KERNEL_OK) return status;
  const int64_t threads =
      int64_t{params.tokens} * params.heads * (params.head_dim / kMergeElements);
  if (threads == 0) return KVT_KERNEL_OK;
  Device device;
  if (const auto status = CheckDevice(&device); status != KVT_KERNEL_OK) return status;
  const auto counted =
      CheckBuilt({{threads < INT32_MAX, "tokens * heads * head_dim / 4", threads, "below 2^31"}});
  if (counted != KVT_KERNEL_OK) return counted;
  const MergePlan plan{params,
                       FastDivide(params.head_dim / kMergeElements),
                       FastDivide(params.heads),
                       static_cast<uint32_t>(threads),
                       first_token,
                       token_limit};
  const cudaError_t error = device.family == Family::kHopper
                                ? LaunchMerge<Family::kHopper>(plan, stream)
                                : LaunchMerge<Family::kAmpere>(plan, stream);
  return StatusOf(error);
}

}  // namespace kvtier::kernels

extern "C" kvt_kernel_status kvt_merge_lse(const kvt_merge_lse_params* params, void* stream) {
  const auto given = kvtier::kernels::CheckRules({{params != nullptr, "params must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  return kvtier::kernels::LaunchMergeLse(*params, nullptr, nullptr,
                                         static_cast<cudaStream_t>(stream));
}
