// SPDX-License-Identifier: Apache-2.0
// Every number of an ATTEND that a client can choose.
#include "daemon/attention/attend_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace kvtier {
namespace {

constexpr uint64_t kWorkspaceBytes = uint64_t{1} << 20;

KvGroup Model() {
  KvGroup group;
  group.layers = 3;
  group.kv_heads = 2;
  group.k_head_dim = 64;
  group.v_head_dim = 64;
  group.dtype = KvDtype::kBfloat16;
  group.block_tokens = 16;
  return group;
}

// Two sequences of two blocks and one.
wire::Attend Request() {
  wire::Attend request;
  request.layer = 1;
  request.q_heads = 8;
  request.query_dtype = KvDtype::kBfloat16;
  request.sequences = {{.query_tokens = 1, .kv_tokens = 21}, {.query_tokens = 3, .kv_tokens = 16}};
  request.blocks = {{BlockIndex{5}, 1}, {BlockIndex{9}, 1}, {BlockIndex{2}, 1}};
  request.output_offset = 64 << 10;
  return request;
}

class AttendPlan : public testing::Test {
 protected:
  Result<std::shared_ptr<AttentionJob>> Plan(const wire::Attend& request,
                                             const KvGroup& model = Model()) {
    return PlanAttend(request, model, {pool_, workspace_, kWorkspaceBytes});
  }
  // The reason for which a request changed by `spoil` is refused.
  std::string ReasonFor(const std::function<void(wire::Attend*)>& spoil) {
    wire::Attend request = Request();
    spoil(&request);
    const auto planned = Plan(request);
    return planned ? "nothing" : planned.error().reason;
  }

  // Never read: any addresses do.
  std::byte* const pool_ = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  std::byte* const workspace_ = reinterpret_cast<std::byte*>(uintptr_t{1} << 41);
};

TEST_F(AttendPlan, PutsEverythingWhereTheLayoutSays) {
  wire::Attend request = Request();
  request.lse_offset = 128 << 10;
  request.window_tokens = UINT32_MAX;
  const auto planned = Plan(request);
  ASSERT_TRUE(planned.has_value());
  const AttentionJob& job = **planned;
  const int64_t slice_bytes = 16 * 2 * 64 * 2;
  EXPECT_EQ(job.cache.key, pool_ + 2 * slice_bytes);
  EXPECT_EQ(job.cache.value, pool_ + 3 * slice_bytes);
  EXPECT_EQ(job.cache.block_stride, 3 * 2 * slice_bytes / 2);
  EXPECT_EQ(job.cache.token_stride, 2 * 64);
  EXPECT_EQ(job.cache.head_stride, 64);
  EXPECT_EQ(job.query, workspace_);
  EXPECT_EQ(job.output, workspace_ + (64 << 10));
  EXPECT_EQ(static_cast<void*>(job.lse), workspace_ + (128 << 10));
  EXPECT_EQ(job.query_starts, (std::vector<int32_t>{0, 1, 4}));
  EXPECT_EQ(job.kv_lengths, (std::vector<int32_t>{21, 16}));
  EXPECT_EQ(job.table_stride, 2);
  EXPECT_EQ(job.PaddedTable(), (std::vector<int32_t>{5, 9, 2, 0}));
  EXPECT_EQ(job.window_tokens, INT32_MAX);
}

TEST_F(AttendPlan, LayersAndHeadsThatTheModelLacksAreRefused) {
  EXPECT_EQ(ReasonFor([](auto* r) { r->layer = 3; }), "bad_layer");
  EXPECT_EQ(ReasonFor([](auto* r) { r->layer = UINT32_MAX; }), "bad_layer");
  EXPECT_EQ(ReasonFor([](auto* r) { r->q_heads = 0; }), "bad_heads");
  EXPECT_EQ(ReasonFor([](auto* r) { r->q_heads = 3; }), "bad_heads");
  EXPECT_EQ(ReasonFor([](auto* r) { r->q_heads = 0xFFFFFFFE; }), "bad_heads");
}

TEST_F(AttendPlan, SequencesMustMakeSense) {
  EXPECT_EQ(ReasonFor([](auto* r) { r->sequences.clear(); }), "bad_sequence");
  EXPECT_EQ(ReasonFor([](auto* r) { r->sequences[0].query_tokens = 0; }), "bad_sequence");
  EXPECT_EQ(ReasonFor([](auto* r) { r->sequences[1].query_tokens = 17; }), "bad_sequence");
  EXPECT_EQ(ReasonFor([](auto* r) { r->sequences[0] = {UINT32_MAX, UINT32_MAX}; }), "attend_work");
}

TEST_F(AttendPlan, EverySequenceNeedsItsBlocks) {
  EXPECT_EQ(ReasonFor([](auto* r) { r->blocks.pop_back(); }), "bad_block_count");
  EXPECT_EQ(ReasonFor([](auto* r) { r->blocks.push_back(r->blocks[0]); }), "bad_block_count");
  EXPECT_EQ(ReasonFor([](auto* r) { r->sequences[0].kv_tokens = UINT32_MAX; }), "bad_block_count");
  // A block may serve twice.
  EXPECT_EQ(ReasonFor([](auto* r) { r->blocks[2] = r->blocks[0]; }), "nothing");
}

TEST_F(AttendPlan, RangesMustLieInTheWorkspaceAndApart) {
  const uint64_t vectors = 4 * 8 * 64 * 2;
  EXPECT_EQ(ReasonFor([&](auto* r) { r->output_offset = kWorkspaceBytes - vectors; }), "nothing");
  EXPECT_EQ(ReasonFor([&](auto* r) { r->output_offset = kWorkspaceBytes - vectors + 16; }),
            "bad_range");
  EXPECT_EQ(ReasonFor([](auto* r) { r->output_offset = UINT64_MAX - 15; }), "bad_range");
  EXPECT_EQ(ReasonFor([](auto* r) { r->query_offset = UINT64_MAX - 15; }), "bad_range");
  EXPECT_EQ(ReasonFor([](auto* r) { r->lse_offset = UINT64_MAX - 31; }), "bad_range");
  EXPECT_EQ(ReasonFor([](auto* r) { r->query_offset = 8; }), "bad_range");
  EXPECT_EQ(ReasonFor([&](auto* r) { r->output_offset = vectors - 16; }), "bad_range");
  EXPECT_EQ(ReasonFor([](auto* r) { r->lse_offset = 16; }), "bad_range");
}

TEST_F(AttendPlan, AJobThatWaitsTakesNoMoreMemoryThanItsMessage) {
  wire::Attend request = Request();
  request.q_heads = 2;
  request.sequences.assign(1024, {1, 1});
  request.sequences[0].kv_tokens = 1024 * 16;
  request.blocks.resize(1023 + 1024, {BlockIndex{7}, 1});
  request.output_offset = kWorkspaceBytes / 2;
  const auto planned = Plan(request);
  ASSERT_TRUE(planned.has_value()) << planned.error().ToString();
  EXPECT_EQ((*planned)->blocks.size(), request.blocks.size());
  EXPECT_EQ((*planned)->PaddedTable().size(), 1024u * 1024);
}

// The CPU pays for an exponential, and for as many products as a vector has lanes, however small
// the heads are, and for reading each key, once a sequence at least.
TEST_F(AttendPlan, TheCpuTakesNoJobOfMinutes) {
  KvGroup model = Model();
  model.layers = model.kv_heads = 1;
  model.dtype = KvDtype::kFloat32;
  model.block_tokens = 1024;
  wire::Attend request;
  request.query_dtype = KvDtype::kFloat32;
  request.output_offset = uint64_t{32} << 20;
  const auto reason = [&](uint32_t head_dim, uint32_t q_heads, uint32_t sequences,
                          wire::AttendSequence each) -> std::string {
    model.k_head_dim = model.v_head_dim = head_dim;
    request.q_heads = q_heads;
    request.sequences.assign(sequences, each);
    request.blocks.assign(size_t{1} * sequences * ((each.kv_tokens + 1023) / 1024), {});
    const auto job = PlanAttend(request, model, {pool_, workspace_, uint64_t{64} << 20});
    if (!job) return job.error().reason;
    const Status computed = MakeHostAttentionEngine()->Check(**job);
    return computed ? "" : computed.error().reason;
  };
  EXPECT_EQ(reason(1, 4, 1, {65536, 131072}), "attend_work");
  EXPECT_EQ(reason(128, 1, 128, {1, 131072}), "attend_work");
  EXPECT_EQ(reason(128, 32, 1, {2000, 2000}), "");
  EXPECT_EQ(reason(128, 32, 64, {1, 8192}), "");
  request.soft_cap = 30;
  EXPECT_EQ(reason(1, 64, 1, {2000, 2000}), "attend_work");
  request.soft_cap = 0;
  EXPECT_EQ(reason(1, 64, 1, {2000, 2000}), "");
}

TEST_F(AttendPlan, TablesAreBounded) {
  // One long sequence beside many short ones would make a table of gigabytes.
  EXPECT_EQ(ReasonFor([](auto* r) {
              r->sequences.assign(4096, {1, 1});
              r->sequences[0].kv_tokens = 12000 * 16;
              r->blocks.resize(4095 + 12000);
            }),
            "attend_work");
}

TEST_F(AttendPlan, ScalesAreOneForEachKvHeadOrOneForAll) {
  KvGroup model = Model();
  model.dtype = KvDtype::kFloat8E4m3;
  const auto plan = [&](const std::vector<float>& keys, const std::vector<float>& values) {
    wire::Attend request = Request();
    request.key_scales = keys;
    request.value_scales = values;
    return Plan(request, model);
  };
  const auto one = plan({0.5F}, {});
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ((*one)->key_scales, (std::vector<float>{0.5F, 0.5F}));
  EXPECT_TRUE((*one)->value_scales.empty());
  const auto each = plan({0.5F, 2.0F}, {3.0F, 4.0F});
  ASSERT_TRUE(each.has_value());
  EXPECT_EQ((*each)->key_scales, (std::vector<float>{0.5F, 2.0F}));
  EXPECT_EQ((*each)->value_scales, (std::vector<float>{3.0F, 4.0F}));
  EXPECT_EQ(plan({1, 1, 1}, {}).error().reason, "bad_scale_count");
  EXPECT_EQ(plan({}, {1, 1, 1}).error().reason, "bad_scale_count");
  model.dtype = KvDtype::kBfloat16;
  EXPECT_EQ(plan({1}, {}).error().reason, "bad_scale_count");
}

TEST_F(AttendPlan, CachesThatNothingComputesAreUnsupported) {
  KvGroup model = Model();
  model.v_head_dim = 32;
  EXPECT_EQ(Plan(Request(), model).error().reason, "attend_geometry");
  model.v_head_dim = 0;
  EXPECT_NE(Plan(Request(), model).error().context.find("latent"), std::string::npos);
  model = Model();
  model.dtype = KvDtype::kInt8;
  EXPECT_EQ(Plan(Request(), model).error().reason, "attend_geometry");
}

}  // namespace
}  // namespace kvtier
