// SPDX-License-Identifier: Apache-2.0
#include "daemon/attention/attend_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "protocol/kv_layout.h"
#include "protocol/limits.h"

namespace kvtier {
namespace {

// Far above any model; it keeps products of counts within 64 bits.
constexpr uint32_t kMaxQueryHeads = 4096;
// Kernels load 16 bytes at a time; a misaligned address is an error that breaks the context.
constexpr uint64_t kRangeAlignment = 16;

tl::unexpected<Error> Bad(const char* reason, std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, reason, std::move(context));
}

// Nothing for types that no kernel computes with; their blocks are cached all the same.
std::optional<kvt_dtype> KernelDtype(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kFloat32:
      return KVT_FP32;
    case KvDtype::kFloat16:
      return KVT_FP16;
    case KvDtype::kBfloat16:
      return KVT_BF16;
    case KvDtype::kFloat8E4m3:
      return KVT_FP8_E4M3;
    default:
      return std::nullopt;
  }
}

// Where the layer's keys and values stand in each block. Strides are counted in elements, as
// kernels take them; KvLayout has them in bytes.
Status PlanCache(const wire::Attend& request, const KvGroup& group, std::byte* pool,
                 AttentionJob* job) {
  if (request.layer >= group.layers) {
    return Bad("bad_layer", fmt::format("{} of {}", request.layer, group.layers));
  }
  if (group.IsOpaque() || group.scale_bytes != 0) {
    return MakeError(ErrorCode::kUnsupported, "attend_geometry",
                     "opaque groups and inline scales: their kernels are the client's own");
  }
  const std::optional<kvt_dtype> dtype = KernelDtype(group.dtype);
  if (!dtype) {
    return MakeError(ErrorCode::kUnsupported, "attend_geometry",
                     fmt::format("nothing computes with a cache of {}", KvDtypeName(group.dtype)));
  }
  if (group.v_head_dim == 0) {
    return MakeError(ErrorCode::kUnsupported, "attend_geometry",
                     "a latent cache (MLA): its kernels are launched by clients alone");
  }
  if (group.k_head_dim != group.v_head_dim) {
    return MakeError(ErrorCode::kUnsupported, "attend_geometry",
                     fmt::format("K heads of {} and V heads of {}: they must be of one size",
                                 group.k_head_dim, group.v_head_dim));
  }
  const KvLayout layout = KvLayout::Of(group);
  const int64_t element = KvDtypeBytes(group.dtype);
  std::byte* const key = pool + request.layer * layout.layer_stride;
  job->cache = {.key = key,
                .value = key + layout.v_offset,
                .dtype = *dtype,
                .kv_heads = static_cast<int32_t>(group.kv_heads),
                .head_dim = static_cast<int32_t>(group.k_head_dim),
                .page_tokens = static_cast<int32_t>(group.block_tokens),
                .block_stride = static_cast<int64_t>(layout.block_stride) / element,
                .token_stride = static_cast<int64_t>(layout.k_token_stride) / element,
                .head_stride = static_cast<int64_t>(layout.k_head_stride) / element};
  return {};
}

// Brings the scales to one for each KV head, which is what engines take.
Status PlanScales(std::span<const float> given, const KvGroup& group, std::vector<float>* scales) {
  if (given.empty()) return {};
  if (group.dtype != KvDtype::kFloat8E4m3) {
    return Bad("bad_scale_count",
               fmt::format("{} for a cache of {}", given.size(), KvDtypeName(group.dtype)));
  }
  if (given.size() != 1 && given.size() != group.kv_heads) {
    return Bad("bad_scale_count", fmt::format("{} for {} KV heads", given.size(), group.kv_heads));
  }
  scales->assign(given.begin(), given.end());
  scales->resize(group.kv_heads, given.front());
  return {};
}

Status PlanQuery(const wire::Attend& request, const KvGroup& group, AttentionJob* job) {
  if (request.q_heads == 0 || request.q_heads > kMaxQueryHeads ||
      request.q_heads % group.kv_heads != 0) {
    return Bad("bad_heads", fmt::format("{} query heads, at most {}, over {} KV heads",
                                        request.q_heads, kMaxQueryHeads, group.kv_heads));
  }
  job->q_heads = static_cast<int32_t>(request.q_heads);
  job->query_dtype = *KernelDtype(request.query_dtype);
  job->softmax_scale = request.softmax_scale;
  job->soft_cap = request.soft_cap;
  // A window beyond INT32_MAX is as good as none, since no sequence is so long.
  job->window_tokens = static_cast<int32_t>(std::min<uint32_t>(request.window_tokens, INT32_MAX));
  return {};
}

uint64_t BlocksOf(const wire::AttendSequence& sequence, uint64_t block_tokens) {
  return (sequence.kv_tokens + block_tokens - 1) / block_tokens;
}

// Called before anything is allocated from these counts. A sequence's queries are its last tokens,
// so that it cannot have more of them than tokens. The named blocks must be exactly those that the
// lengths call for: a kernel reads as many as the lengths say.
Status CheckSequences(const wire::Attend& request, uint64_t block_tokens) {
  uint64_t query_tokens = 0, blocks = 0;
  if (request.sequences.empty()) return Bad("bad_sequence", "there is none");
  for (const wire::AttendSequence& sequence : request.sequences) {
    if (sequence.query_tokens == 0 || sequence.query_tokens > sequence.kv_tokens) {
      return Bad("bad_sequence", fmt::format("{} tokens ask, {} are cached", sequence.query_tokens,
                                             sequence.kv_tokens));
    }
    query_tokens += sequence.query_tokens;
    blocks += BlocksOf(sequence, block_tokens);
  }
  if (query_tokens > wire::kMaxAttendQueryTokens) {
    return MakeError(
        ErrorCode::kLimitExceeded, "attend_work",
        fmt::format("{} tokens ask, {} may", query_tokens, wire::kMaxAttendQueryTokens));
  }
  if (blocks == request.blocks.size()) return {};
  return Bad("bad_block_count", fmt::format("the sequences have {} blocks, {} are named", blocks,
                                            request.blocks.size()));
}

// REQUIRES: CheckSequences passed.
Status PlanSequences(const wire::Attend& request, uint64_t block_tokens, AttentionJob* job) {
  uint64_t longest = 0;
  for (const wire::AttendSequence& sequence : request.sequences) {
    job->query_starts.push_back(job->query_starts.back() +
                                static_cast<int32_t>(sequence.query_tokens));
    job->kv_lengths.push_back(static_cast<int32_t>(sequence.kv_tokens));
    job->max_kv_length = std::max(job->max_kv_length, job->kv_lengths.back());
    longest = std::max(longest, BlocksOf(sequence, block_tokens));
  }
  if (longest * request.sequences.size() > kMaxAttendTableEntries) {
    return MakeError(
        ErrorCode::kLimitExceeded, "attend_work",
        fmt::format("a table of {} times {} blocks", request.sequences.size(), longest));
  }
  job->table_stride = static_cast<int32_t>(longest);
  job->blocks.reserve(request.blocks.size());
  for (const BlockHandle& block : request.blocks) {
    job->blocks.push_back(static_cast<int32_t>(block.index.value));
  }
  return {};
}

// A range of bytes in the workspace: the queries, the output or the log-sum-exp.
struct Range {
  uint64_t offset;
  uint64_t bytes;
};

Status PlanWorkspace(const wire::Attend& request, const AttendMemory& memory, AttentionJob* job) {
  const uint64_t rows = uint64_t{1} * job->query_tokens() * job->q_heads;
  const uint64_t vectors = rows * job->cache.head_dim * KvDtypeBytes(request.query_dtype);
  const bool wants_lse = request.lse_offset != wire::kNoLse;
  const std::array<Range, 3> ranges = {
      {{request.query_offset, vectors},
       {request.output_offset, vectors},
       {wants_lse ? request.lse_offset : 0, wants_lse ? rows * sizeof(float) : 0}}};
  for (const Range& range : ranges) {
    // Compared by subtraction: an offset near 2^64 would pass a comparison of sums.
    if (range.offset % kRangeAlignment == 0 && range.bytes <= memory.workspace_bytes &&
        range.offset <= memory.workspace_bytes - range.bytes) {
      continue;
    }
    return Bad("bad_range", fmt::format("{} bytes at {} of {}", range.bytes, range.offset,
                                        memory.workspace_bytes));
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      // Results that overwrite queries while other threads read them would be wrong without notice.
      const Range &a = ranges[i], &b = ranges[j];
      if (a.bytes > 0 && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) {
        return Bad("bad_range", "queries, output and LSE overlap");
      }
    }
  }
  job->query = memory.workspace + request.query_offset;
  job->output = memory.workspace + request.output_offset;
  if (wants_lse) job->lse = reinterpret_cast<float*>(memory.workspace + request.lse_offset);
  return {};
}

}  // namespace

Result<std::shared_ptr<AttentionJob>> PlanAttend(const wire::Attend& request, const KvGroup& group,
                                                 const AttendMemory& memory) {
  auto job = std::make_shared<AttentionJob>();
  job->pool = request.pool;
  // The order matters: each step relies on the checks of the earlier ones.
  KVT_RETURN_IF_ERROR(PlanCache(request, group, memory.pool, job.get()));
  KVT_RETURN_IF_ERROR(PlanScales(request.key_scales, group, &job->key_scales));
  KVT_RETURN_IF_ERROR(PlanScales(request.value_scales, group, &job->value_scales));
  KVT_RETURN_IF_ERROR(PlanQuery(request, group, job.get()));
  KVT_RETURN_IF_ERROR(CheckSequences(request, group.block_tokens));
  KVT_RETURN_IF_ERROR(PlanSequences(request, group.block_tokens, job.get()));
  KVT_RETURN_IF_ERROR(PlanWorkspace(request, memory, job.get()));
  return job;
}

}  // namespace kvtier
