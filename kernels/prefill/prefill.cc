// SPDX-License-Identifier: Apache-2.0
// The host's side of prefill attention: arguments, workspace, the choice of splits, launches.
#include "kvtier/prefill.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/common/arithmetic.h"
#include "kernels/common/call.h"
#include "kernels/common/refusal.h"
#include "kernels/hopper/tensor_map.h"
#include "kernels/merge/merge_lse.h"
#include "kernels/prefill/ampere_prefill.h"
#include "kernels/prefill/prefill.h"
#include "kernels/prefill/prefill_choice.h"

namespace kvtier::kernels {
namespace {

constexpr int kMaxGroup = 64;

kvt_kernel_status CheckCache(const kvt_paged_kv& kv) {
  const int64_t granule = kv.dtype == KVT_FP8_E4M3 ? 16 : 8;  // elements in 16 bytes
  const auto fits = [granule](int64_t stride) { return stride > 0 && stride % granule == 0; };
  return CheckRules(
      {{kv.key != nullptr && IsAligned16(kv.key), "kv.key must be given, aligned to 16 bytes"},
       {kv.value != nullptr && IsAligned16(kv.value),
        "kv.value must be given, aligned to 16 bytes"},
       {kv.kv_heads > 0, "kv.kv_heads must be above 0"},
       {kv.page_tokens >= 16 && kv.page_tokens <= 256 && IsPowerOfTwo(kv.page_tokens),
        "kv.page_tokens must be a power of two from 16 to 256"},
       {fits(kv.block_stride), "kv.block_stride must be a multiple of 16 bytes, above 0"},
       {fits(kv.token_stride), "kv.token_stride must be a multiple of 16 bytes, above 0"},
       {fits(kv.head_stride), "kv.head_stride must be a multiple of 16 bytes, above 0"}});
}

// REQUIRES: a checked cache.
kvt_kernel_status CheckQueries(const kvt_prefill_params& p) {
  return CheckRules(
      {{p.query != nullptr && IsAligned16(p.query), "query must be given, aligned to 16 bytes"},
       {p.output != nullptr && IsAligned16(p.output), "output must be given, aligned to 16 bytes"},
       {(p.query_token_stride | p.query_head_stride) % 8 == 0,
        "query strides must be multiples of 16 bytes"},
       {(p.output_token_stride | p.output_head_stride) % 8 == 0,
        "output strides must be multiples of 16 bytes"},
       {p.query_starts != nullptr, "query_starts must be given"},
       {p.query_tokens >= 0, "query_tokens must not be negative"},
       {p.sequences.block_table != nullptr, "sequences.block_table must be given"},
       {p.sequences.kv_lengths != nullptr, "sequences.kv_lengths must be given"},
       {p.sequences.sequences >= 0, "sequences.sequences must not be negative"},
       {p.sequences.max_kv_length >= 0, "sequences.max_kv_length must not be negative"},
       {p.q_heads > 0 && p.q_heads % p.kv.kv_heads == 0,
        "q_heads must be a multiple of kv.kv_heads, above 0"},
       {IsPositive(p.softmax_scale), "softmax_scale must be finite and above 0"},
       {IsZeroOrPositive(p.soft_cap), "soft_cap must be finite and not negative"},
       {p.window_tokens >= 0, "window_tokens must not be negative"},
       {p.splits >= 0 && p.splits <= KVT_PREFILL_MAX_SPLITS, "splits must be from 0 to 64"},
       {p.tokens_behind == nullptr || p.causal == 0,
        "tokens_behind must be null where attention is causal"}});
}

// As much of a page as divides a tile.
int32_t BoxTokens(const kvt_prefill_params& p, int32_t tile_rows) {
  const int32_t keys = TileKeys(p.kv.head_dim, tile_rows);
  return std::min(p.kv.page_tokens, keys & -keys);
}

// The counters, then the partial LSEs and outputs of a split launch.
struct WorkspaceLayout {
  int64_t partial_lse = kRegionAlignment;
  int64_t partial_output = kRegionAlignment;
  int64_t bytes = kRegionAlignment;
};

WorkspaceLayout LayOut(const kvt_prefill_params& p, int32_t splits) {
  WorkspaceLayout layout;
  if (splits == 1) return layout;
  const int64_t lse_bytes = int64_t{splits} * p.query_tokens * p.q_heads * int64_t{sizeof(float)};
  layout.partial_output = layout.partial_lse + static_cast<int64_t>(AlignUp(lse_bytes));
  layout.bytes = layout.partial_output + splits * OutputElements(p) * int64_t{sizeof(float)};
  return layout;
}

bool MakePlan(const kvt_prefill_params& p, const PrefillChoice& choice, bool to_fp32,
              char* workspace, PrefillPlan* plan) {
  const WorkspaceLayout layout = LayOut(p, choice.splits);
  plan->params = p;
  plan->counters = reinterpret_cast<PrefillCounters*>(workspace);
  plan->partial_lse = reinterpret_cast<float*>(workspace + layout.partial_lse);
  plan->partial_output = reinterpret_cast<float*>(workspace + layout.partial_output);
  plan->writes_partials = choice.splits > 1 || to_fp32;
  if (choice.splits == 1 && to_fp32) {
    // A part is fp32 anyway: the only one is the output itself.
    plan->partial_lse = p.lse;
    plan->partial_output = static_cast<float*>(p.output);
  }
  plan->group = p.q_heads / p.kv.kv_heads;
  plan->group_inverse = (65536 + plan->group - 1) / plan->group;
  plan->splits = choice.splits;
  plan->tile_rows = choice.tile_rows;
  plan->box_tokens = choice.cluster_ctas != 0 ? kShortUnitKeys : BoxTokens(p, choice.tile_rows);
  plan->box_shift = std::countr_zero(static_cast<uint32_t>(plan->box_tokens));
  // A cluster's CTAs would have to agree on the item that they draw.
  plan->draws_items = choice.cluster_ctas == 1 && choice.items > choice.clusters;
  plan->page_shift = std::countr_zero(static_cast<uint32_t>(p.kv.page_tokens));
  // A split launch is short and has a merge ahead and behind, which leaves no room beside it: what
  // cannot overlap is only dearer in pieces.
  plan->tables_first = p.tables_settled != 0 && choice.splits == 1;
  plan->scales_per_token =
      ScalesVaryByToken(p.kv.key_scales) || ScalesVaryByToken(p.kv.value_scales);
  return EncodePageMap(p.kv, p.kv.key, plan->box_tokens, &plan->key_map) &&
         EncodePageMap(p.kv, p.kv.value, plan->box_tokens, &plan->value_map);
}

cudaError_t Launch(const PrefillPlan& plan, const PrefillChoice& choice, const Device& device,
                   cudaStream_t stream) {
  if (choice.cluster_ctas != 0) {
    return LaunchPrefillShort(plan, static_cast<int>(choice.clusters), choice.cluster_ctas, stream);
  }
  const auto ctas = static_cast<int>(
      std::min<int64_t>(device.processors, BoundTiles(plan.params, plan.tile_rows) * plan.splits));
  switch (OperandsOf(plan.params.kv.dtype)) {
    case Operands::kBf16:
      return LaunchPrefill<Operands::kBf16>(plan, ctas, stream);
    case Operands::kFp16:
      return LaunchPrefill<Operands::kFp16>(plan, ctas, stream);
    default:
      return LaunchPrefill<Operands::kFp8>(plan, ctas, stream);
  }
}

kvt_kernel_status Merge(const PrefillPlan& plan, bool to_fp32, cudaStream_t stream) {
  const kvt_prefill_params& p = plan.params;
  const kvt_merge_lse_params merge = {
      .partials = plan.partial_output,
      .partial_lse = plan.partial_lse,
      .output = p.output,
      .lse = p.lse,
      .partial_dtype = KVT_FP32,
      .output_dtype = to_fp32 ? KVT_FP32 : p.query_dtype,
      .parts = plan.splits,
      .tokens = p.query_tokens,
      .heads = p.q_heads,
      .head_dim = p.kv.head_dim,
      .part_stride = OutputElements(p),
      .lse_part_stride = int64_t{p.query_tokens} * p.q_heads,
      .output_token_stride = p.output_token_stride,
      .output_head_stride = p.output_head_stride,
  };
  return LaunchMergeLse(merge, p.query_starts, p.query_starts + p.sequences.sequences, stream);
}

// By the kernel that all devices run, which needs no workspace.
kvt_kernel_status RunAmpere(const kvt_prefill_params& p, bool to_fp32, cudaStream_t stream) {
  const int64_t blocks = BoundTiles(p, kAmpereRows);
  const auto counted = CheckBuilt(
      {{blocks <= INT32_MAX, "tiles of 64 rows of queries of the step", blocks, "up to 2^31 - 1"}});
  if (counted != KVT_KERNEL_OK) return counted;
  const AmperePrefillPlan plan = {
      .params = p,
      .group = p.q_heads / p.kv.kv_heads,
      .page_shift = std::countr_zero(static_cast<uint32_t>(p.kv.page_tokens)),
      .scales_per_token =
          ScalesVaryByToken(p.kv.key_scales) || ScalesVaryByToken(p.kv.value_scales),
      .to_fp32 = to_fp32,
  };
  cudaError_t error = cudaSuccess;
  switch (OperandsOf(p.kv.dtype)) {
    case Operands::kBf16:
      error = LaunchAmperePrefill<Operands::kBf16>(plan, blocks, stream);
      break;
    case Operands::kFp16:
      error = LaunchAmperePrefill<Operands::kFp16>(plan, blocks, stream);
      break;
    default:
      error = LaunchAmperePrefill<Operands::kFp8>(plan, blocks, stream);
  }
  return StatusOf(error);
}

kvt_kernel_status Run(const kvt_prefill_params& params, bool to_fp32, void* workspace,
                      size_t workspace_bytes, void* stream) {
  if (const auto status = CheckPrefill(&params); status != KVT_KERNEL_OK) return status;
  Device device;
  if (const auto status = CheckDevice(&device); status != KVT_KERNEL_OK) return status;
  if (params.query_tokens == 0 || params.sequences.sequences == 0) return KVT_KERNEL_OK;
  const auto given = CheckRules({{workspace != nullptr, "a workspace must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  const PrefillChoice choice = ChoosePrefill(params, device);
  const auto room = CheckWorkspace(workspace, workspace_bytes,
                                   static_cast<size_t>(LayOut(params, choice.splits).bytes));
  if (room != KVT_KERNEL_OK) return room;
  if (device.family == Family::kAmpere) {
    return RunAmpere(params, to_fp32, static_cast<cudaStream_t>(stream));
  }
  PrefillPlan plan{};
  if (!MakePlan(params, choice, to_fp32, static_cast<char*>(workspace), &plan)) {
    return CheckBuilt({{false, "kv.block_stride", params.kv.block_stride,
                        "strides below 2^40 bytes, with a driver that knows tensor maps"}});
  }
  const auto on = static_cast<cudaStream_t>(stream);
  const kvt_kernel_status launched = StatusOf(Launch(plan, choice, device, on));
  if (launched != KVT_KERNEL_OK || choice.splits == 1) return launched;
  return Merge(plan, to_fp32, on);
}

}  // namespace

kvt_kernel_status CheckPrefill(const kvt_prefill_params* p) {
  const auto given = CheckRules({{p != nullptr, "params must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  if (const auto status = CheckCache(p->kv); status != KVT_KERNEL_OK) return status;
  if (const auto status = CheckQueries(*p); status != KVT_KERNEL_OK) return status;
  const auto types = CheckTypes({{p->query_dtype == KVT_BF16 || p->query_dtype == KVT_FP16,
                                  "query_dtype", p->query_dtype, "bf16 and fp16"},
                                 {p->kv.dtype == p->query_dtype || p->kv.dtype == KVT_FP8_E4M3,
                                  "kv.dtype", p->kv.dtype, "the queries' type and fp8 e4m3"}});
  if (types != KVT_KERNEL_OK) return types;
  const int dim = p->kv.head_dim;
  const int group = p->q_heads / p->kv.kv_heads;
  // Hopper's copy engine counts the elements from a token's first KV head to its last in 31 bits.
  const int64_t gaps = p->kv.kv_heads - 1;
  return CheckBuilt(
      {{dim == 64 || dim == 128 || dim == 256, "kv.head_dim", dim, "64, 128 and 256"},
       {group <= kMaxGroup, "q_heads / kv.kv_heads", group, "1 to 64"},
       {gaps == 0 || p->kv.head_stride <= (int64_t{INT32_MAX} - dim) / gaps, "kv.head_stride",
        p->kv.head_stride, "KV heads that lie within 2^31 elements"}});
}

kvt_kernel_status PrefillToFp32(const kvt_prefill_params& params, void* workspace,
                                size_t workspace_bytes, void* stream) {
  return Run(params, /*to_fp32=*/true, workspace, workspace_bytes, stream);
}

}  // namespace kvtier::kernels

size_t kvt_prefill_workspace_bytes(const kvt_prefill_params* params) {
  using namespace kvtier::kernels;
  Device device;
  if (CheckPrefill(params) != KVT_KERNEL_OK || CheckDevice(&device) != KVT_KERNEL_OK) return 0;
  return static_cast<size_t>(LayOut(*params, ChoosePrefill(*params, device).splits).bytes);
}

kvt_kernel_status kvt_prefill(const kvt_prefill_params* params, void* workspace,
                              size_t workspace_bytes, void* stream) {
  using namespace kvtier::kernels;
  if (params == nullptr) return CheckPrefill(params);
  return Run(*params, /*to_fp32=*/false, workspace, workspace_bytes, stream);
}
