// SPDX-License-Identifier: Apache-2.0
// The host's side of prefill attention: arguments, workspace, the choice of splits, launches.
#include "kvtier/prefill.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/alignment.h"
#include "kernels/attention_check.h"
#include "kernels/blocks/merge_lse.h"
#include "kernels/hopper/hopper.h"
#include "kernels/hopper/tensor_map.h"
#include "kernels/prefill/prefill_launch.h"
#include "kernels/prefill/prefill_plan.h"
#include "kernels/prefill/short_choice.h"
#include "kernels/prefill/short_plan.h"
#include "kernels/prefill/split_choice.h"

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

struct Device {
  int id = 0;
  int processors = 0;
  int major = 0;
};

bool QueryDevice(Device* device) {
  return cudaGetDevice(&device->id) == cudaSuccess &&
         cudaDeviceGetAttribute(&device->processors, cudaDevAttrMultiProcessorCount, device->id) ==
             cudaSuccess &&
         cudaDeviceGetAttribute(&device->major, cudaDevAttrComputeCapabilityMajor, device->id) ==
             cudaSuccess;
}

// Rows of queries over all sequences, of one KV head.
int64_t BoundRows(const kvt_prefill_params& p) {
  return int64_t{p.query_tokens} * (p.q_heads / p.kv.kv_heads);
}

// Tiles of so many rows over all sequences and heads, at most.
int64_t BoundTiles(const kvt_prefill_params& p, int tile_rows) {
  const int64_t rows = BoundRows(p);
  const int64_t sequences = std::min<int64_t>(p.sequences.sequences, rows);
  return p.kv.kv_heads * ((rows - sequences) / tile_rows + sequences);
}

// Likewise, if every sequence has as many queries, which is what a launch is shaped for.
int64_t LikelyTiles(const kvt_prefill_params& p, int tile_rows) {
  const int64_t sequences =
      std::max<int64_t>(1, std::min<int64_t>(p.sequences.sequences, BoundRows(p)));
  const int64_t rows = (BoundRows(p) + sequences - 1) / sequences;
  return p.kv.kv_heads * sequences * ((rows + tile_rows - 1) / tile_rows);
}

// Clusters of 1, 2, 3 and so on CTAs that the device holds at once: it takes a while to find out,
// and does not change.
std::array<int32_t, kMaxClusterCtas> ClusterPlaces(const Device& device) {
  constexpr int kDevices = 64;
  struct Places {
    std::atomic<int32_t> known[kMaxClusterCtas];  // one more than there are; 0: not yet found out
  };
  static Places devices[kDevices];
  std::array<int32_t, kMaxClusterCtas> places{};
  if (device.id >= kDevices) return places;
  for (int i = 0; i < kMaxClusterCtas; ++i) {
    std::atomic<int32_t>& known = devices[device.id].known[i];
    if (known.load() == 0) known.store(ShortClustersAtOnce(i + 1) + 1);
    places[i] = known.load() - 1;
  }
  return places;
}

int64_t OutputElements(const kvt_prefill_params& p) {
  return int64_t{p.query_tokens} * p.q_heads * p.kv.head_dim;
}

// How the long kernel cuts the work.
struct Cut {
  int32_t tile_rows = kTileRows;
  int32_t splits = 1;
};

// High tiles where sequences fill them, and where there are so many that unequal ones fill the
// gaps.
bool SuitsHighTiles(const kvt_prefill_params& p, const Device& device) {
  constexpr int64_t kTilesPerSequence = 2;
  constexpr int64_t kTilesPerProcessor = 2;
  return p.kv.dtype == KVT_FP8_E4M3 && p.kv.head_dim == 128 &&
         BoundRows(p) >= kTilesPerSequence * kHighTileRows * p.sequences.sequences &&
         BoundTiles(p, kHighTileRows) >= kTilesPerProcessor * device.processors;
}

Cut ChooseCut(const kvt_prefill_params& p, const Device& device) {
  const int rows = SuitsHighTiles(p, device) ? kHighTileRows : kTileRows;
  if (p.splits != 0) return {rows, p.splits};
  const int keys = TileKeys(p.kv.head_dim, rows);
  return {rows, ChooseSplits({.query_tiles = BoundTiles(p, rows),
                              .key_tiles = (int64_t{p.sequences.max_kv_length} + keys - 1) / keys,
                              .processors = device.processors,
                              .output_bytes = OutputElements(p) * int64_t{sizeof(float)},
                              .max_splits = KVT_PREFILL_MAX_SPLITS})};
}

// How a launch is made: by the kernel for short suffixes in clusters, or, if their CTAs are 0, by
// that for long ones.
struct Choice {
  int32_t splits = 1;
  int32_t tile_rows = kTileRows;
  int32_t cluster_ctas = 0;
  int64_t clusters = 0;
  int64_t items = 0;  // of the kernel for short suffixes, at most
};

Choice LongChoice(const kvt_prefill_params& p, const Device& device) {
  const Cut cut = ChooseCut(p, device);
  return {.splits = cut.splits, .tile_rows = cut.tile_rows};
}

Choice Choose(const kvt_prefill_params& p, const Device& device) {
  if (p.kv.head_dim > 128 || device.major != kHopper) {
    return LongChoice(p, device);
  }
  const auto places = ClusterPlaces(device);
  Choice choice = {.splits = std::max(1, p.splits)};
  choice.items = BoundTiles(p, kShortRows) * choice.splits;
  const bool fp8 = p.kv.dtype == KVT_FP8_E4M3;
  const double bytes = (fp8 ? 2.0 : 4.0) * p.kv.head_dim * p.sequences.max_kv_length;
  choice.cluster_ctas =
      ChooseClusterCtas({.items = LikelyTiles(p, kShortRows) * choice.splits,
                         .item_bytes = bytes / choice.splits,
                         .all_bytes = bytes * p.kv.kv_heads * p.sequences.sequences,
                         .fp8 = fp8,
                         .narrow = p.kv.head_dim == 64,
                         .places = places});
  if (choice.cluster_ctas == 0) return LongChoice(p, device);
  choice.clusters = std::min<int64_t>(choice.items, places[choice.cluster_ctas - 1]);
  return choice;
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

bool MakePlan(const kvt_prefill_params& p, const Choice& choice, char* workspace,
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
  const auto per_token = [](const kvt_scales& s) {
    return s.values != nullptr && (s.token_stride != 0 || s.block_stride != 0);
  };
  plan->scales_per_token = per_token(p.kv.key_scales) || per_token(p.kv.value_scales);
  return EncodePageMap(p.kv, p.kv.key, plan->box_tokens, &plan->key_map) &&
         EncodePageMap(p.kv, p.kv.value, plan->box_tokens, &plan->value_map);
}

cudaError_t Launch(const PrefillPlan& plan, const Choice& choice, const Device& device,
                   cudaStream_t stream) {
  if (choice.cluster_ctas != 0) {
    return LaunchPrefillShort(plan, static_cast<int>(choice.clusters), choice.cluster_ctas, stream);
  }
  const auto ctas = static_cast<int>(
      std::min<int64_t>(device.processors, BoundTiles(plan.params, plan.tile_rows) * plan.splits));
  if (plan.params.kv.dtype == KVT_FP8_E4M3) return LaunchPrefillFp8(plan, ctas, stream);
  return plan.params.query_dtype == KVT_BF16 ? LaunchPrefillBf16(plan, ctas, stream)
                                             : LaunchPrefillFp16(plan, ctas, stream);
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
  return static_cast<size_t>(LayOut(*params, Choose(*params, device).splits).bytes);
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
  const Choice choice = Choose(*params, device);
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
