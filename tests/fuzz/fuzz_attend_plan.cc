// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: what a client says in an ATTEND, up to the addresses that
// would be computed with.
//
// The input is the group's geometry and the workspace's size (8 bytes), then the message's
// payload, which is of the one that it can be decoded as. Checked besides memory safety: the plan
// lies within the workspace, names no block that the message does not, and has a scale for each
// head or none.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "base/result.h"
#include "daemon/attention/attend_plan.h"

namespace kvtier {
namespace {

constexpr size_t kPrologueBytes = 8;

// Addresses that no code reads at.
std::byte* const kPool = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
std::byte* const kWorkspace = reinterpret_cast<std::byte*>(uintptr_t{1} << 44);

KvGroup GroupOf(const uint8_t* data) {
  KvGroup group;
  group.layers = 1 + data[0] % 64;
  group.kv_heads = 1 + data[1] % 40;
  group.k_head_dim = 1 + data[2];
  group.v_head_dim = data[3] % 4 == 0 ? data[4] : group.k_head_dim;
  group.block_tokens = 1 + data[5] * 4;
  group.dtype = static_cast<KvDtype>(1 + data[6] % 6);
  return group;
}

void CheckWithin(const void* begin, uint64_t bytes, uint64_t workspace_bytes) {
  const auto* const at = static_cast<const std::byte*>(begin);
  KVT_CHECK(at >= kWorkspace && bytes <= workspace_bytes);
  KVT_CHECK(static_cast<uint64_t>(at - kWorkspace) <= workspace_bytes - bytes);
}

void CheckJob(const AttentionJob& job, const wire::Attend& request, const KvGroup& group,
              uint64_t workspace_bytes) {
  const uint64_t rows = uint64_t{1} * job.query_tokens() * job.q_heads;
  const uint64_t bytes = rows * group.k_head_dim * KvDtypeBytes(request.query_dtype);
  CheckWithin(job.query, bytes, workspace_bytes);
  CheckWithin(job.output, bytes, workspace_bytes);
  if (job.lse != nullptr) CheckWithin(job.lse, rows * sizeof(float), workspace_bytes);
  std::set<int32_t> named = {0};
  for (const BlockHandle& block : request.blocks) {
    named.insert(static_cast<int32_t>(block.index.value));
  }
  const std::vector<int32_t> table = job.PaddedTable();
  KVT_CHECK(std::ranges::all_of(table, [&](int32_t b) { return named.contains(b); }));
  KVT_CHECK(table.size() == size_t{1} * job.sequences() * job.table_stride);
  KVT_CHECK(job.query_starts.size() == job.kv_lengths.size() + 1);
  for (int s = 0; s < job.sequences(); ++s) {
    const int32_t queries = job.query_starts[s + 1] - job.query_starts[s];
    KVT_CHECK(queries > 0 && queries <= job.kv_lengths[s]);
    KVT_CHECK(job.kv_lengths[s] <= job.max_kv_length);
    KVT_CHECK(int64_t{job.kv_lengths[s]} <= int64_t{job.table_stride} * group.block_tokens);
  }
  for (const auto* scales : {&job.key_scales, &job.value_scales}) {
    KVT_CHECK(scales->empty() || scales->size() == group.kv_heads);
    KVT_CHECK(std::ranges::all_of(*scales, [](float s) { return std::isfinite(s) && s > 0; }));
  }
  const auto* const key = static_cast<const std::byte*>(job.cache.key);
  KVT_CHECK(key >= kPool && key < kPool + group.BlockBytes());
}

}  // namespace
}  // namespace kvtier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtier;
  if (size < kPrologueBytes) return 0;
  const KvGroup group = GroupOf(data);
  if (!group.Validate()) return 0;
  const auto payload = std::as_bytes(std::span(data, size)).subspan(kPrologueBytes);
  const auto request = wire::Decode<wire::Attend>(payload);
  if (!request) return 0;
  const uint64_t workspace_bytes = uint64_t{1} << (12 + data[7] % 19);
  const auto job =
      PlanAttend(*request, group,
                 {.pool = kPool, .workspace = kWorkspace, .workspace_bytes = workspace_bytes});
  if (job) CheckJob(**job, *request, group, workspace_bytes);
  return 0;
}
