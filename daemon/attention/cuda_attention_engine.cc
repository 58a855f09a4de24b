// SPDX-License-Identifier: Apache-2.0
// Attention by the kernels of libkvtier_kernels.so: no CUDA header is needed here, and none of its
// libraries.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "daemon/attention/attention_engine.h"
#include "kernels/service/device_stream.h"

namespace kvtier {
namespace {

// The sizes that the library has kernels for; Check refuses anything else.
constexpr std::array<int32_t, 3> kHeadDims = {64, 128, 256};
constexpr int32_t kMaxDecodeGroup = 16;
constexpr int32_t kMaxPrefillGroup = 64;
// One of each class of decode's kernels.
constexpr std::array<int32_t, 2> kGroups = {4, kMaxDecodeGroup};
constexpr int32_t kMinPageTokens = 16;
constexpr int32_t kMaxPageTokens = 256;
// Products of a query's and a key's element that one job may ask for: a few seconds' worth.
constexpr double kMaxProducts = 0x1p43;

// Whether every sequence asks with one token, and decode has a kernel for it. Decode reads the
// cache once per KV head, which pays for such jobs.
bool IsDecode(const AttentionJob& job) {
  return job.query_tokens() == job.sequences() &&
         job.q_heads / job.cache.kv_heads <= kMaxDecodeGroup &&
         int64_t{job.sequences()} * job.cache.kv_heads <= KVT_DECODE_MAX_PAIRS;
}

double ProductsOf(const AttentionJob& job) {
  double pairs = 0;
  for (int32_t s = 0; s < job.sequences(); ++s) {
    pairs += static_cast<double>(job.query_starts[s + 1] - job.query_starts[s]) * job.kv_lengths[s];
  }
  return pairs * job.q_heads * job.cache.head_dim;
}

class CudaAttentionEngine final : public AttentionEngine {
 public:
  CudaAttentionEngine()
      : AttentionEngine(
            {.name = "cuda", .concurrent = false, .head_dims = kHeadDims, .groups = kGroups}) {}
  [[nodiscard]] Status Open(const kvt_kernel_table* table, int32_t ordinal) {
    return ToStatus(stream_.Open({table, ordinal}), "a stream");
  }
  [[nodiscard]] Status Check(const AttentionJob& job) const override;
  [[nodiscard]] Status Run(const AttentionJob& job) override;
  [[nodiscard]] Status Copy(void* to, const void* from, size_t bytes) override;

 private:
  // Turns the result of a call of the table into a Status; `attempted` names the call in messages.
  // Errors as of Run, and kUnsupported "attend_geometry".
  [[nodiscard]] Status ToStatus(kvt_kernel_status status, const char* attempted) const;
  [[nodiscard]] const kvt_kernel_table& table() const { return stream_.table(); }
  // The job's tables on the device, and its cache with the scales there.
  struct DeviceTables {
    kvt_paged_kv cache{};
    kvt_sequences sequences{};
    const int32_t* query_starts = nullptr;
  };
  [[nodiscard]] Result<DeviceTables> Upload(const AttentionJob& job);
  [[nodiscard]] Status Decode(const AttentionJob& job, const DeviceTables& tables);
  [[nodiscard]] Status Append(const AttentionJob& job, const DeviceTables& tables);

  kernels::DeviceStream stream_;
  // Buffers grow with the largest job so far and are kept, since allocating stalls the whole
  // device.
  kernels::DeviceBuffer tables_;
  // Each kernel's own: what one leaves there means nothing to the other.
  kernels::DeviceBuffer decode_workspace_;
  kernels::DeviceBuffer prefill_workspace_;
};

Status CudaAttentionEngine::ToStatus(kvt_kernel_status status, const char* attempted) const {
  if (status == KVT_KERNEL_OK) return {};
  const bool refused = status == KVT_KERNEL_INVALID_ARGUMENT || status == KVT_KERNEL_UNSUPPORTED;
  std::string text = fmt::format("{}: {} ({})", attempted, table().status_text(status),
                                 refused ? table().last_error_detail() : table().cuda_error_text());
  if (status == KVT_KERNEL_UNSUPPORTED) {
    return MakeError(ErrorCode::kUnsupported, "attend_geometry", std::move(text));
  }
  if (status == KVT_KERNEL_OUT_OF_MEMORY) {
    return MakeError(ErrorCode::kResourceExhausted, "attend_memory", std::move(text));
  }
  // CUDA reports an error of a single launch once. If a harmless call still meets an error, the
  // whole context is broken, and only a new process can use the GPU.
  const bool lost = stream_.get() != nullptr && stream_.Synchronize() != KVT_KERNEL_OK;
  return MakeError(ErrorCode::kIoError, lost ? kDeviceLost : "kernel_failed", std::move(text));
}

Status CudaAttentionEngine::Check(const AttentionJob& job) const {
  const kvt_paged_kv& cache = job.cache;
  const bool types = (job.query_dtype == KVT_BF16 || job.query_dtype == KVT_FP16) &&
                     (cache.dtype == job.query_dtype || cache.dtype == KVT_FP8_E4M3);
  const bool page = cache.page_tokens >= kMinPageTokens && cache.page_tokens <= kMaxPageTokens &&
                    std::has_single_bit(static_cast<uint32_t>(cache.page_tokens));
  const bool heads = std::ranges::find(kHeadDims, cache.head_dim) != kHeadDims.end() &&
                     job.q_heads / cache.kv_heads <= kMaxPrefillGroup;
  if (types && page && heads) return CheckWork(ProductsOf(job), kMaxProducts);
  return MakeError(ErrorCode::kUnsupported, "attend_geometry",
                   fmt::format("no kernel for heads of {}, {} of them for a KV head, blocks of {} "
                               "tokens and these types",
                               cache.head_dim, job.q_heads / cache.kv_heads, cache.page_tokens));
}

// All tables travel in one copy, since each copy costs microseconds whatever its size. Lengths and
// scales are all 32 bits wide, so that they can share one array.
Result<CudaAttentionEngine::DeviceTables> CudaAttentionEngine::Upload(const AttentionJob& job) {
  std::vector<int32_t> all = job.PaddedTable();
  const auto append = [&all](const auto& values) {
    const size_t at = all.size();
    for (const auto value : values) all.push_back(std::bit_cast<int32_t>(value));
    return at;
  };
  const size_t lengths_at = append(job.kv_lengths);
  const size_t starts_at = append(job.query_starts);
  const size_t key_scales_at = append(job.key_scales);
  const size_t value_scales_at = append(job.value_scales);
  KVT_RETURN_IF_ERROR(ToStatus(tables_.Upload(stream_, all.data(), all.size() * sizeof(int32_t)),
                               "copying tables"));
  auto* const base = static_cast<int32_t*>(tables_.memory());
  const auto scales = [this](const std::vector<float>& values, size_t at) {
    return ScalesByHead({static_cast<const float*>(tables_.memory()) + at, values.size()});
  };
  DeviceTables tables{job.cache, job.tables(base), base + starts_at};
  tables.cache.key_scales = scales(job.key_scales, key_scales_at);
  tables.cache.value_scales = scales(job.value_scales, value_scales_at);
  tables.sequences.kv_lengths = base + lengths_at;
  return tables;
}

Status CudaAttentionEngine::Decode(const AttentionJob& job, const DeviceTables& tables) {
  const int64_t row = int64_t{job.q_heads} * job.cache.head_dim;
  const kvt_decode_params params{.query = job.query,
                                 .output = job.output,
                                 .lse = job.lse,
                                 .query_dtype = job.query_dtype,
                                 .q_heads = job.q_heads,
                                 .query_sequence_stride = row,
                                 .query_head_stride = job.cache.head_dim,
                                 .output_sequence_stride = row,
                                 .output_head_stride = job.cache.head_dim,
                                 .kv = tables.cache,
                                 .sequences = tables.sequences,
                                 .softmax_scale = job.softmax_scale,
                                 .soft_cap = job.soft_cap,
                                 .window_tokens = job.window_tokens};
  KVT_RETURN_IF_ERROR(
      ToStatus(decode_workspace_.Reserve(stream_, table().decode_workspace_bytes(&params)),
               "scratch memory"));
  return ToStatus(
      table().decode(&params, decode_workspace_.memory(), decode_workspace_.bytes(), stream_.get()),
      "decode");
}

Status CudaAttentionEngine::Append(const AttentionJob& job, const DeviceTables& tables) {
  const int64_t row = int64_t{job.q_heads} * job.cache.head_dim;
  const kvt_prefill_params params{.query = job.query,
                                  .output = job.output,
                                  .lse = job.lse,
                                  .query_dtype = job.query_dtype,
                                  .q_heads = job.q_heads,
                                  .query_token_stride = row,
                                  .query_head_stride = job.cache.head_dim,
                                  .output_token_stride = row,
                                  .output_head_stride = job.cache.head_dim,
                                  .kv = tables.cache,
                                  .sequences = tables.sequences,
                                  .query_starts = tables.query_starts,
                                  .query_tokens = job.query_tokens(),
                                  .softmax_scale = job.softmax_scale,
                                  .soft_cap = job.soft_cap,
                                  .window_tokens = job.window_tokens,
                                  .causal = 1};
  KVT_RETURN_IF_ERROR(
      ToStatus(prefill_workspace_.Reserve(stream_, table().prefill_workspace_bytes(&params)),
               "scratch memory"));
  return ToStatus(table().prefill(&params, prefill_workspace_.memory(), prefill_workspace_.bytes(),
                                  stream_.get()),
                  "append");
}

Status CudaAttentionEngine::Run(const AttentionJob& job) {
  if (job.cancelled.load(std::memory_order_relaxed)) {
    return MakeError(ErrorCode::kCancelled, "attend_cancelled");
  }
  KVT_RETURN_IF_ERROR(ToStatus(stream_.device().Select(), "choosing a device"));
  KVT_ASSIGN_OR_RETURN(const DeviceTables tables, Upload(job));
  Status queued = IsDecode(job) ? Decode(job, tables) : Append(job, tables);
  // Where some could not be queued, too, since the rest uses the job's memory.
  KVT_RETURN_IF_ERROR(ToStatus(stream_.Synchronize(), "waiting for the kernels"));
  return queued;
}

Status CudaAttentionEngine::Copy(void* to, const void* from, size_t bytes) {
  KVT_RETURN_IF_ERROR(ToStatus(stream_.device().Select(), "choosing a device"));
  KVT_RETURN_IF_ERROR(ToStatus(stream_.Copy(to, from, bytes), "copying"));
  return ToStatus(stream_.Synchronize(), "copying");
}

}  // namespace

Result<std::unique_ptr<AttentionEngine>> OpenCudaAttentionEngine(const kvt_kernel_table* table,
                                                                 int32_t ordinal) {
  auto engine = std::make_unique<CudaAttentionEngine>();
  KVT_RETURN_IF_ERROR(engine->Open(table, ordinal));
  return engine;
}

}  // namespace kvtier
