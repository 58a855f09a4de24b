// SPDX-License-Identifier: Apache-2.0
// The host's side of MLA decode: checks, sizes, launch.
#include "kvtier/mla.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "kernels/common/arithmetic.h"
#include "kernels/common/call.h"
#include "kernels/common/refusal.h"
#include "kernels/hopper/tensor_map.h"
#include "kernels/mla/mla.h"
#include "kvtier/decode.h"

namespace kvtier::kernels {
namespace {

constexpr float kLog2E = 1.4426950408889634F;
constexpr uint64_t kQueryBytes = 2;  // of an element
constexpr uint32_t kChunkColumns = 64;

kvt_kernel_status CheckArguments(const kvt_mla_decode_params& p) {
  constexpr int64_t kGranule = 8;  // elements in 16 bytes
  const int64_t latent_granule = p.latent_dtype == KVT_FP8_E4M3 ? 2 * kGranule : kGranule;
  const auto fits = [](int64_t stride, int64_t granule) {
    return stride > 0 && stride % granule == 0;
  };
  const bool split = p.split_tokens == 0 ||
                     (p.split_tokens >= KVT_DECODE_MIN_SPLIT && IsPowerOfTwo(p.split_tokens));
  return CheckRules(
      {{p.query != nullptr && IsAligned16(p.query), "query must be given, aligned to 16 bytes"},
       {p.output != nullptr && IsAligned16(p.output), "output must be given, aligned to 16 bytes"},
       {p.latent != nullptr && IsAligned16(p.latent), "latent must be given, aligned to 16 bytes"},
       {p.sequences.block_table != nullptr, "sequences.block_table must be given"},
       {p.sequences.kv_lengths != nullptr, "sequences.kv_lengths must be given"},
       {p.sequences.sequences >= 0, "sequences.sequences must not be negative"},
       {p.sequences.max_kv_length >= 0, "sequences.max_kv_length must not be negative"},
       {p.q_heads > 0, "q_heads must be above 0"},
       {p.page_tokens >= 16 && p.page_tokens <= 256 && IsPowerOfTwo(p.page_tokens),
        "page_tokens must be a power of two from 16 to 256"},
       {fits(p.query_sequence_stride, kGranule) && fits(p.query_head_stride, kGranule),
        "query strides must be multiples of 16 bytes, above 0"},
       {(p.output_sequence_stride | p.output_head_stride) % kGranule == 0,
        "output strides must be multiples of 16 bytes"},
       {fits(p.block_stride, latent_granule) && fits(p.token_stride, latent_granule),
        "block_stride and token_stride must be multiples of 16 bytes, above 0"},
       {split, "split_tokens must be 0 or a power of two from 256 on"},
       {IsPositive(p.softmax_scale), "softmax_scale must be finite and above 0"}});
}

int HeadTiles(const kvt_mla_decode_params& p) {
  return (p.q_heads + kMlaTileHeads - 1) / kMlaTileHeads;
}

kvt_kernel_status Check(const kvt_mla_decode_params* p) {
  const auto given = CheckRules({{p != nullptr, "params must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  if (const auto status = CheckArguments(*p); status != KVT_KERNEL_OK) return status;
  const auto types = CheckTypes(
      {{p->dtype == KVT_BF16 || p->dtype == KVT_FP16, "dtype", p->dtype, "bf16 and fp16"},
       {p->latent_dtype == p->dtype || p->latent_dtype == KVT_FP8_E4M3, "latent_dtype",
        p->latent_dtype, "the queries' type and fp8 e4m3"}});
  if (types != KVT_KERNEL_OK) return types;
  const int64_t pairs = int64_t{p->sequences.sequences} * HeadTiles(*p);
  return CheckBuilt(
      {{p->q_heads <= KVT_MLA_MAX_HEADS, "q_heads", p->q_heads, "1 to 128"},
       {pairs <= KVT_MLA_MAX_PAIRS, "sequences * tiles of 64 heads", pairs, "up to 16384"}});
}

// How a step is cut, from the facts that the host knows.
struct Cut {
  int unit_tokens;
  int chunks;
  int64_t slots;  // parts that can be written, for each head
};

// Nothing if the device cannot run it, or the step has more units than are counted in 31 bits.
std::optional<Cut> CutFor(const kvt_mla_decode_params& p) {
  Device device;
  if (CheckHopper("MLA decode", &device) != KVT_KERNEL_OK) return std::nullopt;
  Cut cut = {.unit_tokens = p.split_tokens > 0 ? p.split_tokens : kMlaTileTokens};
  const int64_t longest = std::max(p.sequences.max_kv_length, 1);
  const int64_t units = p.sequences.sequences * ((longest + cut.unit_tokens - 1) / cut.unit_tokens);
  const auto counted = CheckBuilt({{units <= INT32_MAX / 2, "units of work of the step", units,
                                    "up to 2^30; longer split_tokens make fewer"}});
  if (counted != KVT_KERNEL_OK) return std::nullopt;
  cut.chunks = static_cast<int>(
      std::clamp<int64_t>(units, 1, std::max(1, device.processors / HeadTiles(p))));
  cut.slots = p.split_tokens > 0 ? units : int64_t{2} * cut.chunks;
  return cut;
}

// Workspace, in order: states of merges, parts' LSE, parts. The place of the states does not depend
// on the parameters, since calls leave them zero and all else as it is.
struct WorkspaceLayout {
  size_t lse_offset;
  size_t parts_offset;
  size_t bytes;
};

WorkspaceLayout LayOut(const kvt_mla_decode_params& p, const Cut& cut) {
  const size_t rows = static_cast<size_t>(cut.slots) * p.q_heads;
  WorkspaceLayout layout = {};
  layout.lse_offset = AlignUp(KVT_MLA_MAX_PAIRS * sizeof(MergeState));
  layout.parts_offset = layout.lse_offset + AlignUp(rows * sizeof(float));
  layout.bytes = layout.parts_offset + AlignUp(rows * KVT_MLA_LATENT_DIM * sizeof(float));
  return layout;
}

StepShape StepOf(const kvt_mla_decode_params& p, const Cut& cut) {
  return {.kv_lengths = p.sequences.kv_lengths,
          .sequences = p.sequences.sequences,
          .max_kv_length = p.sequences.max_kv_length,
          .kv_heads = 1,
          .window_tokens = 0,
          .split_tokens = p.split_tokens,
          .unit_shift = std::countr_zero(static_cast<uint32_t>(cut.unit_tokens))};
}

// Coordinates (element, head, sequence); one copy brings 64 elements of 64 heads, swizzled, zeros
// for heads that do not exist. Returns false if strides are too large for the copy engine to
// address.
bool EncodeQueryMap(const kvt_mla_decode_params& params, CUtensorMap* map) {
  const cuuint64_t extents[] = {KVT_MLA_QUERY_DIM, static_cast<cuuint64_t>(params.q_heads),
                                static_cast<cuuint64_t>(params.sequences.sequences)};
  const cuuint64_t strides[] = {params.query_head_stride * kQueryBytes,
                                params.query_sequence_stride * kQueryBytes};
  const cuuint32_t box[] = {kChunkColumns, kMlaTileHeads, 1};
  return EncodeTensorMap(params.query,
                         {.type = CU_TENSOR_MAP_DATA_TYPE_UINT16,
                          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                          .extents = extents,
                          .strides = strides,
                          .box = box},
                         map);
}

// Coordinates (column, token within the page, block). One copy brings 64 columns of `box_tokens`
// tokens, swizzled unless the latent cache is fp8. False: likewise.
bool EncodeLatentMap(const kvt_mla_decode_params& params, int box_tokens, CUtensorMap* map) {
  const bool fp8 = params.latent_dtype == KVT_FP8_E4M3;
  const uint64_t element = fp8 ? 1 : 2;
  const cuuint64_t extents[] = {KVT_MLA_QUERY_DIM, static_cast<cuuint64_t>(params.page_tokens),
                                INT32_MAX};
  const cuuint64_t strides[] = {params.token_stride * element, params.block_stride * element};
  const cuuint32_t box[] = {kChunkColumns, static_cast<cuuint32_t>(box_tokens), 1};
  return EncodeTensorMap(
      params.latent,
      {.type = fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
       .swizzle = fp8 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
       .extents = extents,
       .strides = strides,
       .box = box},
      map);
}

bool MakeArguments(const kvt_mla_decode_params& p, const Cut& cut, void* workspace,
                   MlaArguments* arguments) {
  const WorkspaceLayout layout = LayOut(p, cut);
  auto* const bytes = static_cast<char*>(workspace);
  arguments->step = StepOf(p, cut);
  arguments->block_table = p.sequences.block_table;
  arguments->table_stride = p.sequences.table_stride;
  arguments->output = p.output;
  arguments->lse = p.lse;
  arguments->output_sequence_stride = p.output_sequence_stride;
  arguments->output_head_stride = p.output_head_stride;
  arguments->q_heads = p.q_heads;
  arguments->head_tiles = HeadTiles(p);
  arguments->box_tokens = std::min(p.page_tokens, kMlaTileTokens);
  arguments->page_shift = std::countr_zero(static_cast<uint32_t>(p.page_tokens));
  arguments->score_scale = p.softmax_scale * kLog2E;
  arguments->tables_settled = p.tables_settled;
  arguments->scales = p.latent_scales;
  arguments->scales_by_token = p.latent_dtype == KVT_FP8_E4M3 && ScalesVaryByToken(p.latent_scales);
  arguments->merges = reinterpret_cast<MergeState*>(bytes);
  arguments->part_lse = reinterpret_cast<float*>(bytes + layout.lse_offset);
  arguments->parts = reinterpret_cast<float*>(bytes + layout.parts_offset);
  return EncodeQueryMap(p, &arguments->query_map) &&
         EncodeLatentMap(p, arguments->box_tokens, &arguments->latent_map);
}

cudaError_t Launch(const kvt_mla_decode_params& p, const MlaArguments& arguments, int blocks,
                   cudaStream_t stream) {
  switch (OperandsOf(p.latent_dtype)) {
    case Operands::kBf16:
      return LaunchMla<Operands::kBf16>(p.dtype, arguments, blocks, stream);
    case Operands::kFp16:
      return LaunchMla<Operands::kFp16>(p.dtype, arguments, blocks, stream);
    default:
      return LaunchMla<Operands::kFp8>(p.dtype, arguments, blocks, stream);
  }
}

}  // namespace
}  // namespace kvtier::kernels

size_t kvt_mla_decode_workspace_bytes(const kvt_mla_decode_params* params) {
  using namespace kvtier::kernels;
  if (Check(params) != KVT_KERNEL_OK) return 0;
  const auto cut = CutFor(*params);
  return cut ? LayOut(*params, *cut).bytes : 0;
}

kvt_kernel_status kvt_mla_decode(const kvt_mla_decode_params* params, void* workspace,
                                 size_t workspace_bytes, void* stream) {
  using namespace kvtier::kernels;
  if (const kvt_kernel_status status = Check(params); status != KVT_KERNEL_OK) return status;
  const auto cut = CutFor(*params);
  if (!cut) return KVT_KERNEL_UNSUPPORTED;
  const auto room = CheckWorkspace(workspace, workspace_bytes, LayOut(*params, *cut).bytes);
  if (room != KVT_KERNEL_OK) return room;
  if (params->sequences.sequences == 0) return KVT_KERNEL_OK;
  MlaArguments arguments{};
  if (!MakeArguments(*params, *cut, workspace, &arguments)) {
    return CheckBuilt({{false, "block_stride", params->block_stride,
                        "strides below 2^40 bytes, with a driver that knows tensor maps"}});
  }
  const cudaError_t error = Launch(*params, arguments, cut->chunks * arguments.head_tiles,
                                   static_cast<cudaStream_t>(stream));
  return StatusOf(error);
}
