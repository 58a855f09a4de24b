// SPDX-License-Identifier: Apache-2.0
// The host's side of decode: checks, sizes, launch.

#include "kvtier/decode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/common/arithmetic.h"
#include "kernels/common/call.h"
#include "kernels/common/refusal.h"
#include "kernels/decode/decode.h"

namespace kvtier::kernels {
namespace {

bool IsSplitValid(int32_t split_tokens) {
  return split_tokens == 0 || (split_tokens >= KVT_DECODE_MIN_SPLIT && IsPowerOfTwo(split_tokens));
}

kvt_kernel_status CheckCache(const kvt_paged_kv& kv) {
  const int64_t element = kv.dtype == KVT_FP8_E4M3 ? 1 : 2;
  return CheckRules(
      {{kv.key != nullptr && IsAligned16(kv.key), "kv.key must be given, aligned to 16 bytes"},
       {kv.value != nullptr && IsAligned16(kv.value),
        "kv.value must be given, aligned to 16 bytes"},
       {kv.kv_heads > 0, "kv.kv_heads must be above 0"},
       {kv.page_tokens >= 16 && kv.page_tokens <= 256 && IsPowerOfTwo(kv.page_tokens),
        "kv.page_tokens must be a power of two from 16 to 256"},
       {IsAligned16(kv.block_stride * element), "kv.block_stride must be a multiple of 16 bytes"},
       {IsAligned16(kv.token_stride * element), "kv.token_stride must be a multiple of 16 bytes"},
       {IsAligned16(kv.head_stride * element), "kv.head_stride must be a multiple of 16 bytes"}});
}

// REQUIRES: a checked cache.
kvt_kernel_status CheckQueries(const kvt_decode_params& p) {
  return CheckRules(
      {{p.query != nullptr && IsAligned16(p.query), "query must be given, aligned to 16 bytes"},
       {p.output != nullptr && IsAligned16(p.output), "output must be given, aligned to 16 bytes"},
       {IsAligned16((p.query_sequence_stride | p.query_head_stride) * 2),
        "query strides must be multiples of 16 bytes"},
       {IsAligned16((p.output_sequence_stride | p.output_head_stride) * 2),
        "output strides must be multiples of 16 bytes"},
       {p.sequences.block_table != nullptr, "sequences.block_table must be given"},
       {p.sequences.kv_lengths != nullptr, "sequences.kv_lengths must be given"},
       {p.sequences.sequences >= 0, "sequences.sequences must not be negative"},
       {p.sequences.max_kv_length >= 0, "sequences.max_kv_length must not be negative"},
       {p.q_heads > 0 && p.q_heads % p.kv.kv_heads == 0,
        "q_heads must be a multiple of kv.kv_heads, above 0"},
       {std::isfinite(p.softmax_scale), "softmax_scale must be finite"},
       {IsZeroOrPositive(p.soft_cap), "soft_cap must be finite and not negative"},
       {p.window_tokens >= 0, "window_tokens must not be negative"},
       {IsSplitValid(p.split_tokens), "split_tokens must be 0 or a power of two from 256 on"}});
}

kvt_kernel_status CheckIsBuilt(const kvt_decode_params& p) {
  const kvt_paged_kv& kv = p.kv;
  const auto types = CheckTypes({{p.query_dtype == KVT_BF16 || p.query_dtype == KVT_FP16,
                                  "query_dtype", p.query_dtype, "bf16 and fp16"},
                                 {kv.dtype == p.query_dtype || kv.dtype == KVT_FP8_E4M3, "kv.dtype",
                                  kv.dtype, "the queries' type and fp8 e4m3"}});
  if (types != KVT_KERNEL_OK) return types;
  const int64_t pairs = int64_t{p.sequences.sequences} * kv.kv_heads;
  return CheckBuilt(
      {{kv.head_dim == 64 || kv.head_dim == 128 || kv.head_dim == 256, "kv.head_dim", kv.head_dim,
        "64, 128 and 256"},
       {p.q_heads / kv.kv_heads <= kDecodeMaxGroup, "q_heads / kv.kv_heads",
        p.q_heads / kv.kv_heads, "1 to 16"},
       {pairs <= KVT_DECODE_MAX_PAIRS, "sequences * kv_heads", pairs, "up to 65536"}});
}

template <Family kFamily>
DecodeShape ShapeFor(const kvt_paged_kv& kv) {
  switch (OperandsOf(kv.dtype)) {
    case Operands::kBf16:
      return DecodeShapeFor<kFamily, Operands::kBf16>(kv.head_dim);
    case Operands::kFp16:
      return DecodeShapeFor<kFamily, Operands::kFp16>(kv.head_dim);
    default:
      return DecodeShapeFor<kFamily, Operands::kFp8>(kv.head_dim);
  }
}

// How many of the step's blocks the device holds at once.
int64_t CapacityOf(const Device& device, const DecodeShape& shape) {
  const int room = device.shared_bytes / (shape.shared_bytes + kOtherSharedBytes);
  return int64_t{device.processors} * std::clamp(room, 1, shape.blocks_per_sm);
}

// How a step is cut, from the facts that the host knows.
struct Cut {
  Family family = Family::kAmpere;  // whose kernels work it off
  int unit_tokens = 0;
  int blocks = 0;
  int64_t slots = 0;  // parts that can be written
};

// Refuses a device that cannot run it, and steps with more units than are counted in 31 bits.
kvt_kernel_status MakeCut(const kvt_decode_params& params, Cut* cut) {
  Device device;
  if (const auto status = CheckDevice(&device); status != KVT_KERNEL_OK) return status;
  cut->family = device.family;
  const DecodeShape shape = device.family == Family::kHopper ? ShapeFor<Family::kHopper>(params.kv)
                                                             : ShapeFor<Family::kAmpere>(params.kv);
  cut->unit_tokens = params.split_tokens > 0 ? params.split_tokens : shape.tile_tokens;
  const int64_t pairs = int64_t{params.sequences.sequences} * params.kv.kv_heads;
  const int64_t longest = std::max(params.sequences.max_kv_length, 1);
  const int64_t units = pairs * ((longest + cut->unit_tokens - 1) / cut->unit_tokens);
  const auto counted = CheckBuilt({{units <= INT32_MAX / 2, "units of work of the step", units,
                                    "up to 2^30; longer split_tokens make fewer"}});
  if (counted != KVT_KERNEL_OK) return counted;
  cut->blocks = static_cast<int>(std::clamp<int64_t>(units, 1, CapacityOf(device, shape)));
  cut->slots = params.split_tokens > 0 ? units : int64_t{2} * cut->blocks;
  return KVT_KERNEL_OK;
}

// Workspace, in order: arrivals, statistics, parts. The place of the arrivals does not depend on
// the parameters, since calls leave them zero and all else as it is.
struct WorkspaceLayout {
  size_t stats_offset;
  size_t parts_offset;
  size_t bytes;
};

WorkspaceLayout LayOut(const kvt_decode_params& params, const Cut& cut) {
  const size_t rows = static_cast<size_t>(cut.slots) * (params.q_heads / params.kv.kv_heads);
  WorkspaceLayout layout = {};
  layout.stats_offset = KVT_DECODE_MAX_PAIRS * sizeof(int32_t);
  layout.parts_offset = layout.stats_offset + AlignUp(rows * sizeof(DecodePartStats));
  layout.bytes = layout.parts_offset + AlignUp(rows * params.kv.head_dim * sizeof(float));
  return layout;
}

DecodeArguments ArgumentsFor(const kvt_decode_params& params, const Cut& cut, bool to_fp32,
                             void* workspace) {
  const WorkspaceLayout layout = LayOut(params, cut);
  const int64_t element = params.kv.dtype == KVT_FP8_E4M3 ? 1 : 2;
  auto* const bytes = static_cast<char*>(workspace);
  DecodeArguments arguments = {};
  arguments.params = params;
  arguments.step = {.kv_lengths = params.sequences.kv_lengths,
                    .sequences = params.sequences.sequences,
                    .max_kv_length = params.sequences.max_kv_length,
                    .kv_heads = params.kv.kv_heads,
                    .window_tokens = params.window_tokens,
                    .split_tokens = params.split_tokens,
                    .unit_shift = std::countr_zero(static_cast<uint32_t>(cut.unit_tokens))};
  arguments.block_stride_bytes = params.kv.block_stride * element;
  arguments.token_stride_bytes = params.kv.token_stride * element;
  arguments.head_stride_bytes = params.kv.head_stride * element;
  arguments.group = params.q_heads / params.kv.kv_heads;
  arguments.page_shift = std::countr_zero(static_cast<uint32_t>(params.kv.page_tokens));
  arguments.output_shift = to_fp32 ? 2 : 1;
  arguments.per_token_scales =
      ScalesVaryByToken(params.kv.key_scales) || ScalesVaryByToken(params.kv.value_scales);
  arguments.workspace = {.arrivals = reinterpret_cast<int32_t*>(bytes),
                         .stats = reinterpret_cast<DecodePartStats*>(bytes + layout.stats_offset),
                         .parts = reinterpret_cast<float*>(bytes + layout.parts_offset)};
  return arguments;
}

template <Family kFamily>
cudaError_t Launch(const DecodeArguments& arguments, int blocks, cudaStream_t stream) {
  switch (OperandsOf(arguments.params.kv.dtype)) {
    case Operands::kBf16:
      return LaunchDecode<kFamily, Operands::kBf16>(arguments, blocks, stream);
    case Operands::kFp16:
      return LaunchDecode<kFamily, Operands::kFp16>(arguments, blocks, stream);
    default:
      return LaunchDecode<kFamily, Operands::kFp8>(arguments, blocks, stream);
  }
}

kvt_kernel_status Run(const kvt_decode_params& params, bool to_fp32, void* workspace,
                      size_t workspace_bytes, void* stream) {
  if (const auto status = CheckDecode(&params); status != KVT_KERNEL_OK) return status;
  Cut cut;
  if (const auto status = MakeCut(params, &cut); status != KVT_KERNEL_OK) return status;
  const auto room = CheckWorkspace(workspace, workspace_bytes, LayOut(params, cut).bytes);
  if (room != KVT_KERNEL_OK) return room;
  if (params.sequences.sequences == 0) return KVT_KERNEL_OK;
  const DecodeArguments arguments = ArgumentsFor(params, cut, to_fp32, workspace);
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cut.family == Family::kHopper
                                ? Launch<Family::kHopper>(arguments, cut.blocks, on)
                                : Launch<Family::kAmpere>(arguments, cut.blocks, on);
  return StatusOf(error);
}

}  // namespace

kvt_kernel_status CheckDecode(const kvt_decode_params* params) {
  const auto given = CheckRules({{params != nullptr, "params must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  if (const auto status = CheckCache(params->kv); status != KVT_KERNEL_OK) return status;
  if (const auto status = CheckQueries(*params); status != KVT_KERNEL_OK) return status;
  return CheckIsBuilt(*params);
}

kvt_kernel_status DecodeToFp32(const kvt_decode_params& params, void* workspace,
                               size_t workspace_bytes, void* stream) {
  return Run(params, /*to_fp32=*/true, workspace, workspace_bytes, stream);
}

}  // namespace kvtier::kernels

size_t kvt_decode_workspace_bytes(const kvt_decode_params* params) {
  using namespace kvtier::kernels;
  Cut cut;
  if (CheckDecode(params) != KVT_KERNEL_OK || MakeCut(*params, &cut) != KVT_KERNEL_OK) return 0;
  return LayOut(*params, cut).bytes;
}

kvt_kernel_status kvt_decode(const kvt_decode_params* params, void* workspace,
                             size_t workspace_bytes, void* stream) {
  using namespace kvtier::kernels;
  if (params == nullptr) return CheckDecode(params);
  return Run(*params, /*to_fp32=*/false, workspace, workspace_bytes, stream);
}
