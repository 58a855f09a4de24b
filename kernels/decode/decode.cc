// SPDX-License-Identifier: Apache-2.0
// The host's side of decode: checks, sizes, launch.

#include "kvtier/decode.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "kernels/common/arithmetic.h"
#include "kernels/common/call.h"
#include "kernels/decode/decode.h"

namespace kvtier::kernels {
namespace {

bool CacheMakesSense(const kvt_paged_kv& kv) {
  const int64_t element = kv.dtype == KVT_FP8_E4M3 ? 1 : 2;
  return kv.key != nullptr && kv.value != nullptr && IsAligned16(kv.key) && IsAligned16(kv.value) &&
         kv.kv_heads > 0 && kv.page_tokens >= 16 && kv.page_tokens <= 256 &&
         IsPowerOfTwo(kv.page_tokens) && IsAligned16(kv.block_stride * element) &&
         IsAligned16(kv.token_stride * element) && IsAligned16(kv.head_stride * element);
}

bool SplitMakesSense(int32_t split_tokens) {
  return split_tokens == 0 || (split_tokens >= KVT_DECODE_MIN_SPLIT && IsPowerOfTwo(split_tokens));
}

bool ParametersMakeSense(const kvt_decode_params& params) {
  const kvt_sequences& sequences = params.sequences;
  return CacheMakesSense(params.kv) && params.query != nullptr && params.output != nullptr &&
         IsAligned16(params.query) && IsAligned16(params.output) &&
         IsAligned16(params.query_sequence_stride * 2) &&
         IsAligned16(params.query_head_stride * 2) &&
         IsAligned16(params.output_sequence_stride * 2) &&
         IsAligned16(params.output_head_stride * 2) && sequences.block_table != nullptr &&
         sequences.kv_lengths != nullptr && sequences.sequences >= 0 &&
         sequences.max_kv_length >= 0 && params.q_heads > 0 &&
         params.q_heads % params.kv.kv_heads == 0 && params.soft_cap >= 0 &&
         params.window_tokens >= 0 && SplitMakesSense(params.split_tokens);
}

bool IsBuilt(const kvt_decode_params& params) {
  const kvt_paged_kv& kv = params.kv;
  const bool types = (params.query_dtype == KVT_BF16 || params.query_dtype == KVT_FP16) &&
                     (kv.dtype == params.query_dtype || kv.dtype == KVT_FP8_E4M3);
  const bool sizes = kv.head_dim == 64 || kv.head_dim == 128 || kv.head_dim == 256;
  return types && sizes && params.q_heads / kv.kv_heads <= kDecodeMaxGroup &&
         int64_t{params.sequences.sequences} * kv.kv_heads <= KVT_DECODE_MAX_PAIRS;
}

DecodeShape ShapeFor(const kvt_paged_kv& kv) {
  switch (OperandsOf(kv.dtype)) {
    case Operands::kBf16:
      return DecodeShapeFor<Operands::kBf16>(kv.head_dim);
    case Operands::kFp16:
      return DecodeShapeFor<Operands::kFp16>(kv.head_dim);
    default:
      return DecodeShapeFor<Operands::kFp8>(kv.head_dim);
  }
}

// How a step is cut, from what the host knows.
struct Cut {
  int unit_tokens;
  int blocks;
  int64_t slots;  // parts that can be written
};

// Nothing if the device cannot run it, or the step has more units than are counted in 31 bits.
std::optional<Cut> CutFor(const kvt_decode_params& params) {
  Device device;
  if (!QueryDevice(&device) || device.major != kHopper) return std::nullopt;
  const DecodeShape shape = ShapeFor(params.kv);
  Cut cut = {.unit_tokens = params.split_tokens > 0 ? params.split_tokens : shape.tile_tokens};
  const int64_t pairs = int64_t{params.sequences.sequences} * params.kv.kv_heads;
  const int64_t longest = std::max(params.sequences.max_kv_length, 1);
  const int64_t units = pairs * ((longest + cut.unit_tokens - 1) / cut.unit_tokens);
  if (units > INT32_MAX / 2) return std::nullopt;
  const int64_t capacity = int64_t{device.processors} * shape.blocks_per_sm;
  cut.blocks = static_cast<int>(std::clamp<int64_t>(units, 1, capacity));
  cut.slots = params.split_tokens > 0 ? units : int64_t{2} * cut.blocks;
  return cut;
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

DecodeArguments ArgumentsFor(const kvt_decode_params& params, const Cut& cut, void* workspace) {
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
  arguments.per_token_scales =
      ScalesVaryByToken(params.kv.key_scales) || ScalesVaryByToken(params.kv.value_scales);
  arguments.workspace = {.arrivals = reinterpret_cast<int32_t*>(bytes),
                         .stats = reinterpret_cast<DecodePartStats*>(bytes + layout.stats_offset),
                         .parts = reinterpret_cast<float*>(bytes + layout.parts_offset)};
  return arguments;
}

cudaError_t Launch(const DecodeArguments& arguments, int blocks, cudaStream_t stream) {
  switch (OperandsOf(arguments.params.kv.dtype)) {
    case Operands::kBf16:
      return LaunchDecode<Operands::kBf16>(arguments, blocks, stream);
    case Operands::kFp16:
      return LaunchDecode<Operands::kFp16>(arguments, blocks, stream);
    default:
      return LaunchDecode<Operands::kFp8>(arguments, blocks, stream);
  }
}

}  // namespace

kvt_kernel_status CheckDecode(const kvt_decode_params* params) {
  if (params == nullptr || !ParametersMakeSense(*params)) return KVT_KERNEL_INVALID_ARGUMENT;
  return IsBuilt(*params) ? KVT_KERNEL_OK : KVT_KERNEL_UNSUPPORTED;
}

}  // namespace kvtier::kernels

size_t kvt_decode_workspace_bytes(const kvt_decode_params* params) {
  using namespace kvtier::kernels;
  if (CheckDecode(params) != KVT_KERNEL_OK) return 0;
  const auto cut = CutFor(*params);
  return cut ? LayOut(*params, *cut).bytes : 0;
}

kvt_kernel_status kvt_decode(const kvt_decode_params* params, void* workspace,
                             size_t workspace_bytes, void* stream) {
  using namespace kvtier::kernels;
  if (const kvt_kernel_status status = CheckDecode(params); status != KVT_KERNEL_OK) return status;
  const auto cut = CutFor(*params);
  if (!cut) return KVT_KERNEL_UNSUPPORTED;
  if (workspace == nullptr || workspace_bytes < LayOut(*params, *cut).bytes) {
    return KVT_KERNEL_WORKSPACE_TOO_SMALL;
  }
  if (params->sequences.sequences == 0) return KVT_KERNEL_OK;
  const cudaError_t error = Launch(ArgumentsFor(*params, *cut, workspace), cut->blocks,
                                   static_cast<cudaStream_t>(stream));
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}
