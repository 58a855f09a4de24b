// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>

#include "daemon/attention/attention_engine.h"
#include "kernels/service/host_attention.h"

namespace kvtier {
namespace {

// The code is the same for all sizes, so that one size of each suffices for the self-test.
constexpr std::array<int32_t, 1> kHeadDims = {64};
constexpr std::array<int32_t, 1> kGroups = {4};
// The limit of one job: others wait for the thread meanwhile.
constexpr double kMaxJobNs = 5e9;

kernels::ReferenceAttention ProblemOf(const AttentionJob& job, const int32_t* table) {
  kvt_paged_kv cache = job.cache;
  cache.key_scales = ScalesByHead(job.key_scales);
  cache.value_scales = ScalesByHead(job.value_scales);
  return {.query = job.query,
          .query_dtype = job.query_dtype,
          .q_heads = job.q_heads,
          .query_token_stride = int64_t{job.q_heads} * job.cache.head_dim,
          .query_head_stride = job.cache.head_dim,
          .query_starts = job.query_starts.data(),
          .kv = cache,
          .sequences = job.tables(table),
          .softmax_scale = job.softmax_scale,
          .soft_cap = job.soft_cap,
          .window_tokens = job.window_tokens};
}

class HostAttentionEngine final : public AttentionEngine {
 public:
  HostAttentionEngine()
      : AttentionEngine(
            {.name = "cpu", .concurrent = true, .head_dims = kHeadDims, .groups = kGroups}) {}
  [[nodiscard]] Status Check(const AttentionJob& job) const override;
  [[nodiscard]] Status Run(const AttentionJob& job) override;
  [[nodiscard]] Status Copy(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
};

Status HostAttentionEngine::Check(const AttentionJob& job) const {
  const bool fp8 = job.cache.dtype == KVT_FP8_E4M3;
  if (fp8 ? job.query_dtype != KVT_FP32 : job.query_dtype == job.cache.dtype) {
    return CheckWork(kernels::HostAttentionNs(ProblemOf(job, nullptr)), kMaxJobNs);
  }
  return MakeError(ErrorCode::kUnsupported, "attend_geometry",
                   "queries must have the cache's type, or 16 bits over one of 8");
}

// The flag is looked at while computing, so that a long job of a client that has gone ends soon.
Status HostAttentionEngine::Run(const AttentionJob& job) {
  const std::vector<int32_t> table = job.PaddedTable();
  const kernels::HostAttention attention{ProblemOf(job, table.data()), job.output, job.lse};
  if (kernels::AttendOnHost(attention, &job.cancelled)) return {};
  return MakeError(ErrorCode::kCancelled, "attend_cancelled");
}

}  // namespace

std::unique_ptr<AttentionEngine> MakeHostAttentionEngine() {
  return std::make_unique<HostAttentionEngine>();
}

}  // namespace kvtier
