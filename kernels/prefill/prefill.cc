// SPDX-License-Identifier: Apache-2.0
// The host's side of prefill attention: arguments, workspace, the choice of splits, launches.
#include "kvtier/prefill.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/blocks/merge_lse.h"
#include "kernels/common/arithmetic.h"
#include "kernels/common/call.h"
#include "kernels/hopper/tensor_map.h"
#include "kernels/prefill/prefill.h"
#include "kernels/prefill/prefill_choice.h"

namespace kvtier::kernels {
namespace {

constexpr int kMaxGroup = 64;

bool HasTables(const kvt_prefill_params& p) {
  return p.query_starts && p.sequences.block_table && p.sequences.kv_lengths;
}

bool IsValidCache(const kvt_paged_kv& kv) {
  const int64_t granule = kv.dtype == KVT_FP8_E4M3 ? 16 : 8;
  const bool strides = kv.block_stride > 0 && kv.token_stride > 0 && kv.head_stride > 0 &&
                       (kv.block_stride | kv.token_stride | kv.head_stride) % granule == 0;
  const bool page = kv.page_tokens >= 16 && kv.page_tokens <= 256 && IsPowerOfTwo(kv.page_tokens);
  return kv.key && kv.value && IsAligned16(kv.key) && IsAligned16(kv.value) && strides && page &&
         kv.kv_heads > 0;
}

bool IsValidQuery(const kvt_prefill_params& p) {
  const int64_t strides =
      p.query_token_stride | p.query_head_stride | p.output_token_stride | p.output_head_stride;
  return p.query && p.output && IsAligned16(p.query) && IsAligned16(p.output) && strides % 8 == 0 &&
         p.query_tokens >= 0 && p.q_heads > 0;
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

bool MakePlan(const kvt_prefill_params& p, const PrefillChoice& choice, char* workspace,
              PrefillPlan* plan) {
  const WorkspaceLayout layout = LayOut(p, choice.splits);
  plan->params = p;
  plan->counters = reinterpret_cast<PrefillCounters*>(workspace);
  plan->partial_lse = reinterpret_cast<float*>(workspace + layout.partial_lse);
  plan->partial_output = reinterpret_cast<float*>(workspace + layout.partial_output);
  plan->group = p.q_heads / p.kv.kv_heads;
  plan->group_inverse = (65536 + plan->group - 1) / plan->group;
  plan->splits = choice.splits;
  plan->tile_rows = choice.tile_rows;
  plan->box_tokens = choice.cluster_ctas != 0 ? kShortUnitKeys : BoxTokens(p, choice.tile_rows);
  plan->box_shift = std::countr_zero(static_cast<uint32_t>(plan->box_tokens));
  // A cluster would have to agree on what it draws.
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

kvt_kernel_status Merge(const PrefillPlan& plan, cudaStream_t stream) {
  const kvt_prefill_params& p = plan.params;
  const kvt_merge_lse_params merge = {
      .partials = plan.partial_output,
      .partial_lse = plan.partial_lse,
      .output = p.output,
      .lse = p.lse,
      .partial_dtype = KVT_FP32,
      .output_dtype = p.query_dtype,
      .parts = plan.splits,
      .tokens = p.query_tokens,
      .heads = p.q_heads,
      .head_dim = p.kv.head_dim,
      .part_stride = OutputElements(p),
      .lse_part_stride = int64_t{p.query_tokens} * p.q_heads,
      .output_token_stride = p.output_token_stride,
      .output_head_stride = p.output_head_stride,
  };
  return LaunchMergeLse(merge, p.query_starts + p.sequences.sequences, stream);
}

}  // namespace

kvt_kernel_status CheckPrefill(const kvt_prefill_params* p) {
  if (p == nullptr || !HasTables(*p) || !IsValidCache(p->kv) || !IsValidQuery(*p) ||
      p->sequences.sequences < 0 || p->sequences.max_kv_length < 0 ||
      p->q_heads % p->kv.kv_heads != 0 || p->splits < 0 || p->splits > KVT_PREFILL_MAX_SPLITS ||
      p->window_tokens < 0 || !(p->soft_cap >= 0) || !(p->softmax_scale > 0) ||
      (p->tokens_behind != nullptr && p->causal != 0)) {
    return KVT_KERNEL_INVALID_ARGUMENT;
  }
  const bool types = (p->query_dtype == KVT_BF16 || p->query_dtype == KVT_FP16) &&
                     (p->kv.dtype == p->query_dtype || p->kv.dtype == KVT_FP8_E4M3);
  const int dim = p->kv.head_dim;
  const bool built =
      (dim == 64 || dim == 128 || dim == 256) && p->q_heads / p->kv.kv_heads <= kMaxGroup;
  return types && built ? KVT_KERNEL_OK : KVT_KERNEL_UNSUPPORTED;
}

}  // namespace kvtier::kernels

size_t kvt_prefill_workspace_bytes(const kvt_prefill_params* params) {
  using namespace kvtier::kernels;
  Device device;
  if (CheckPrefill(params) != KVT_KERNEL_OK || !QueryDevice(&device)) return 0;
  return static_cast<size_t>(LayOut(*params, ChoosePrefill(*params, device).splits).bytes);
}

kvt_kernel_status kvt_prefill(const kvt_prefill_params* params, void* workspace,
                              size_t workspace_bytes, void* stream) {
  using namespace kvtier::kernels;
  const kvt_kernel_status status = CheckPrefill(params);
  if (status != KVT_KERNEL_OK) return status;
  Device device;
  if (!QueryDevice(&device)) return KVT_KERNEL_LAUNCH_FAILED;
  if (device.major != kHopper) return KVT_KERNEL_UNSUPPORTED;
  if (params->query_tokens == 0 || params->sequences.sequences == 0) return KVT_KERNEL_OK;
  const PrefillChoice choice = ChoosePrefill(*params, device);
  if (workspace == nullptr) return KVT_KERNEL_INVALID_ARGUMENT;
  if (static_cast<int64_t>(workspace_bytes) < LayOut(*params, choice.splits).bytes) {
    return KVT_KERNEL_WORKSPACE_TOO_SMALL;
  }
  PrefillPlan plan{};
  if (!MakePlan(*params, choice, static_cast<char*>(workspace), &plan)) {
    return KVT_KERNEL_UNSUPPORTED;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  if (Launch(plan, choice, device, on) != cudaSuccess) return KVT_KERNEL_LAUNCH_FAILED;
  return choice.splits > 1 ? Merge(plan, on) : KVT_KERNEL_OK;
}
