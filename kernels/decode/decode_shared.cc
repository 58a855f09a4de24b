// SPDX-License-Identifier: Apache-2.0
// Shared-prefix decode, made of the other kernels: the sequences of a prefix are to it like the
// tokens of a suffix to prefill, only without a causal order among them.

#include <optional>

#include "kernels/common/arithmetic.h"
#include "kernels/common/call.h"
#include "kernels/common/refusal.h"
#include "kvtier/kernels.h"

namespace kvtier::kernels {
namespace {

constexpr int kParts = 2;  // of the prefix, and of the own tokens

// Workspace, in order: prefill's, decode's, both parts' outputs in fp32, both parts' LSE. Rounded
// to 16 bits before the merge, parts would be off by 1.6 times a plain kernel's error.
struct SharedLayout {
  size_t decode_offset;
  size_t outputs_offset;
  size_t lse_offset;
  size_t bytes;
};

int64_t Rows(const kvt_decode_params& own) {
  return int64_t{own.sequences.sequences} * own.q_heads;
}

// Part `part` of both parts' outputs, rows side by side.
void* PartOutput(const kvt_decode_params& own, char* outputs, int part) {
  return outputs + part * Rows(own) * own.kv.head_dim * int64_t{sizeof(float)};
}

// The own tokens' part. The sinks are counted here, and so once.
kvt_decode_params OwnPart(const kvt_decode_params& own, char* outputs, float* lse) {
  kvt_decode_params params = own;
  params.output = PartOutput(own, outputs, 1);
  params.output_head_stride = own.kv.head_dim;
  params.output_sequence_stride = int64_t{own.q_heads} * own.kv.head_dim;
  params.lse = lse + Rows(own);
  return params;
}

kvt_prefill_params PrefixPart(const kvt_decode_shared_params& shared, char* outputs, float* lse) {
  const kvt_decode_params& own = shared.own;
  kvt_prefill_params params = {};
  params.query = own.query;
  params.output = PartOutput(own, outputs, 0);
  params.lse = lse;
  params.query_dtype = own.query_dtype;
  params.q_heads = own.q_heads;
  params.query_token_stride = own.query_sequence_stride;
  params.query_head_stride = own.query_head_stride;
  params.output_token_stride = int64_t{own.q_heads} * own.kv.head_dim;
  params.output_head_stride = own.kv.head_dim;
  params.kv = own.kv;
  params.sequences = shared.prefixes;
  params.query_starts = shared.members;
  params.query_tokens = own.sequences.sequences;
  params.softmax_scale = own.softmax_scale;
  params.soft_cap = own.soft_cap;
  params.window_tokens = own.window_tokens;
  params.tokens_behind = own.sequences.kv_lengths;
  params.tables_settled = own.tables_settled;
  return params;
}

kvt_merge_lse_params Merge(const kvt_decode_params& own, const char* outputs, const float* lse) {
  kvt_merge_lse_params params = {};
  params.partials = outputs;
  params.partial_lse = lse;
  params.output = own.output;
  params.lse = own.lse;
  params.partial_dtype = KVT_FP32;
  params.output_dtype = own.query_dtype;
  params.parts = kParts;
  params.tokens = own.sequences.sequences;
  params.heads = own.q_heads;
  params.head_dim = own.kv.head_dim;
  params.part_stride = Rows(own) * own.kv.head_dim;
  params.lse_part_stride = Rows(own);
  params.output_token_stride = own.output_sequence_stride;
  params.output_head_stride = own.output_head_stride;
  return params;
}

// All three launches are queued or none: the parts write where this says, so the caller's output
// and LSE are checked by decode's own rules.
kvt_kernel_status Check(const kvt_decode_shared_params* params) {
  const auto given = CheckRules({{params != nullptr, "params must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  const auto prefixes =
      CheckRules({{params->members != nullptr, "members must be given"},
                  {params->prefixes.sequences > 0, "prefixes.sequences must be above 0"}});
  if (prefixes != KVT_KERNEL_OK) return prefixes;
  if (const auto status = CheckDecode(&params->own); status != KVT_KERNEL_OK) return status;
  const kvt_prefill_params prefix =
      PrefixPart(*params, static_cast<char*>(params->own.output), nullptr);
  return CheckPrefill(&prefix);
}

// Nothing if the device cannot run a part. REQUIRES: checked.
std::optional<SharedLayout> LayOut(const kvt_decode_shared_params& shared) {
  // Sizes depend on no pointer, but all must be set for the checks.
  auto* const any_outputs = static_cast<char*>(shared.own.output);
  auto* const any_lse = static_cast<float*>(shared.own.output);
  const kvt_prefill_params prefix = PrefixPart(shared, any_outputs, any_lse);
  const kvt_decode_params own = OwnPart(shared.own, any_outputs, any_lse);
  const size_t prefill_bytes = kvt_prefill_workspace_bytes(&prefix);
  const size_t decode_bytes = kvt_decode_workspace_bytes(&own);
  if (prefill_bytes == 0 || decode_bytes == 0) return std::nullopt;
  const size_t rows = kParts * static_cast<size_t>(Rows(shared.own));
  SharedLayout layout = {};
  layout.decode_offset = AlignUp(prefill_bytes);
  layout.outputs_offset = layout.decode_offset + AlignUp(decode_bytes);
  layout.lse_offset =
      layout.outputs_offset + AlignUp(rows * shared.own.kv.head_dim * sizeof(float));
  layout.bytes = layout.lse_offset + AlignUp(rows * sizeof(float));
  return layout;
}

}  // namespace
}  // namespace kvtier::kernels

size_t kvt_decode_shared_workspace_bytes(const kvt_decode_shared_params* params) {
  using namespace kvtier::kernels;
  if (Check(params) != KVT_KERNEL_OK) return 0;
  const auto layout = LayOut(*params);
  return layout ? layout->bytes : 0;
}

kvt_kernel_status kvt_decode_shared(const kvt_decode_shared_params* params, void* workspace,
                                    size_t workspace_bytes, void* stream) {
  using namespace kvtier::kernels;
  if (const auto checked = Check(params); checked != KVT_KERNEL_OK) return checked;
  const auto layout = LayOut(*params);
  if (!layout) return KVT_KERNEL_UNSUPPORTED;
  const auto room = CheckWorkspace(workspace, workspace_bytes, layout->bytes);
  if (room != KVT_KERNEL_OK) return room;
  auto* const bytes = static_cast<char*>(workspace);
  char* const outputs = bytes + layout->outputs_offset;
  auto* const lse = reinterpret_cast<float*>(bytes + layout->lse_offset);
  const kvt_prefill_params prefix = PrefixPart(*params, outputs, lse);
  const kvt_decode_params own = OwnPart(params->own, outputs, lse);
  const kvt_merge_lse_params merge = Merge(params->own, outputs, lse);
  kvt_kernel_status status = PrefillToFp32(prefix, bytes, layout->decode_offset, stream);
  if (status != KVT_KERNEL_OK) return status;
  status = DecodeToFp32(own, bytes + layout->decode_offset,
                        layout->outputs_offset - layout->decode_offset, stream);
  if (status != KVT_KERNEL_OK) return status;
  return kvt_merge_lse(&merge, stream);
}
