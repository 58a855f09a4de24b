// SPDX-License-Identifier: Apache-2.0
// Parameters that make no sense are told before anything is queued, with or without a GPU. Pointers
// here point at nothing that is on one: no call may get as far as reading them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/common/refusal.h"
#include "kvtier/kernels.h"

namespace kvtier::kernels {
namespace {

// Aligned as everything must be; somewhere is not null.
alignas(256) char memory[4096];
void* Somewhere() { return memory + 256; }
void* Askew() { return memory + 8; }

template <typename Params>
struct Change {
  const char* what;
  std::function<void(Params*)> make;
};

// `call` must take the good parameters (whatever it says of device or workspace) and refuse each
// change with this status.
template <typename Params>
void ExpectRefused(const Params& good, const std::function<kvt_kernel_status(const Params*)>& call,
                   kvt_kernel_status expected, const std::vector<Change<Params>>& changes) {
  EXPECT_NE(call(&good), KVT_KERNEL_INVALID_ARGUMENT) << "the good parameters";
  EXPECT_EQ(call(nullptr), KVT_KERNEL_INVALID_ARGUMENT) << "no parameters";
  for (const Change<Params>& change : changes) {
    Params params = good;
    change.make(&params);
    EXPECT_EQ(call(&params), expected) << change.what;
  }
}

kvt_paged_kv Cache() {
  kvt_paged_kv kv{};
  kv.key = kv.value = Somewhere();
  kv.dtype = KVT_BF16;
  kv.kv_heads = 2;
  kv.head_dim = 128;
  kv.page_tokens = 16;
  kv.block_stride = 16 * 2 * 128 * 2;
  kv.token_stride = 2 * 128;
  kv.head_stride = 128;
  return kv;
}

kvt_sequences Sequences() {
  return {.block_table = static_cast<int32_t*>(Somewhere()),
          .kv_lengths = static_cast<int32_t*>(Somewhere()),
          .table_stride = 4,
          .sequences = 1,
          .max_kv_length = 64};
}

kvt_decode_params GoodDecode() {
  kvt_decode_params p{};
  p.query = p.output = Somewhere();
  p.query_dtype = KVT_BF16;
  p.q_heads = 8;
  p.query_sequence_stride = p.output_sequence_stride = 8 * 128;
  p.query_head_stride = p.output_head_stride = 128;
  p.kv = Cache();
  p.sequences = Sequences();
  p.softmax_scale = 1;
  return p;
}

kvt_prefill_params GoodPrefill() {
  kvt_prefill_params p{};
  p.query = p.output = Somewhere();
  p.query_dtype = KVT_BF16;
  p.q_heads = 8;
  p.query_token_stride = p.output_token_stride = 8 * 128;
  p.query_head_stride = p.output_head_stride = 128;
  p.kv = Cache();
  p.sequences = Sequences();
  p.query_starts = static_cast<int32_t*>(Somewhere());
  p.query_tokens = 4;
  p.softmax_scale = 1;
  p.causal = 1;
  return p;
}

// Parameters that decode and prefill share.
template <typename P>
std::vector<Change<P>> BadAttention() {
  return {
      {"no query", [](P* p) { p->query = nullptr; }},
      {"no output", [](P* p) { p->output = nullptr; }},
      {"no keys", [](P* p) { p->kv.key = nullptr; }},
      {"no values", [](P* p) { p->kv.value = nullptr; }},
      {"no block table", [](P* p) { p->sequences.block_table = nullptr; }},
      {"no lengths", [](P* p) { p->sequences.kv_lengths = nullptr; }},
      {"a query askew", [](P* p) { p->query = Askew(); }},
      {"an output askew", [](P* p) { p->output = Askew(); }},
      {"keys askew", [](P* p) { p->kv.key = Askew(); }},
      {"values askew", [](P* p) { p->kv.value = Askew(); }},
      {"query heads askew", [](P* p) { p->query_head_stride = 129; }},
      {"output heads askew", [](P* p) { p->output_head_stride = 129; }},
      {"blocks askew", [](P* p) { p->kv.block_stride += 1; }},
      {"tokens askew", [](P* p) { p->kv.token_stride += 4; }},
      {"heads askew", [](P* p) { p->kv.head_stride += 7; }},
      {"pages of 3", [](P* p) { p->kv.page_tokens = 3; }},
      {"pages of 8", [](P* p) { p->kv.page_tokens = 8; }},
      {"pages of 24", [](P* p) { p->kv.page_tokens = 24; }},
      {"pages of 512", [](P* p) { p->kv.page_tokens = 512; }},
      {"pages of less than nothing", [](P* p) { p->kv.page_tokens = INT32_MIN; }},
      {"no query heads", [](P* p) { p->q_heads = 0; }},
      {"no KV heads", [](P* p) { p->kv.kv_heads = 0; }},
      {"less than no KV heads", [](P* p) { p->kv.kv_heads = -2; }},
      {"a group and a half", [](P* p) { p->q_heads = 3; }},
      {"less than no sequences", [](P* p) { p->sequences.sequences = -1; }},
      {"less than no tokens", [](P* p) { p->sequences.max_kv_length = -1; }},
      {"a window of less than nothing", [](P* p) { p->window_tokens = -1; }},
      {"a cap of less than nothing", [](P* p) { p->soft_cap = -1; }},
      {"an infinite cap", [](P* p) { p->soft_cap = INFINITY; }},
      {"a cap that is not a number", [](P* p) { p->soft_cap = NAN; }},
      {"an infinite scale", [](P* p) { p->softmax_scale = INFINITY; }},
      {"a scale of minus infinity", [](P* p) { p->softmax_scale = -INFINITY; }},
      {"a scale that is not a number", [](P* p) { p->softmax_scale = NAN; }},
  };
}
template <typename P>
std::vector<Change<P>> UnbuiltAttention() {
  return {
      {"heads of 96", [](P* p) { p->kv.head_dim = 96; }},
      {"heads of nothing", [](P* p) { p->kv.head_dim = 0; }},
      {"queries of fp32", [](P* p) { p->query_dtype = KVT_FP32; }},
      {"queries of fp8", [](P* p) { p->query_dtype = KVT_FP8_E4M3; }},
      {"another cache than queries", [](P* p) { p->kv.dtype = KVT_FP16; }},
      {"a cache of fp32", [](P* p) { p->kv.dtype = KVT_FP32; }},
      {"groups of 1024", [](P* p) { p->q_heads = 1024 * p->kv.kv_heads; }},
      {"an unknown type", [](P* p) { p->kv.dtype = static_cast<kvt_dtype>(77); }},
  };
}

TEST(KernelStatus, OfUsedUpMemoryIsNotThatOfAFailedLaunch) {
  EXPECT_EQ(StatusOf(cudaSuccess), KVT_KERNEL_OK);
  EXPECT_EQ(StatusOf(cudaErrorMemoryAllocation), KVT_KERNEL_OUT_OF_MEMORY);
  EXPECT_EQ(StatusOf(cudaErrorNoDevice), KVT_KERNEL_UNSUPPORTED);
  EXPECT_EQ(StatusOf(cudaErrorIllegalAddress), KVT_KERNEL_LAUNCH_FAILED);
}

TEST(KernelParameters, OfDecodeAreChecked) {
  using P = kvt_decode_params;
  const auto call = [](const P* p) { return kvt_decode(p, nullptr, 0, nullptr); };
  auto bad = BadAttention<P>();
  bad.push_back({"sequences askew", [](P* p) { p->query_sequence_stride += 1; }});
  bad.push_back({"outputs askew", [](P* p) { p->output_sequence_stride += 1; }});
  bad.push_back({"splits of 300", [](P* p) { p->split_tokens = 300; }});
  bad.push_back({"splits of 128", [](P* p) { p->split_tokens = 128; }});
  bad.push_back({"splits of less than nothing", [](P* p) { p->split_tokens = -256; }});
  ExpectRefused<P>(GoodDecode(), call, KVT_KERNEL_INVALID_ARGUMENT, bad);
  auto unbuilt = UnbuiltAttention<P>();
  unbuilt.push_back({"too many pairs", [](P* p) { p->sequences.sequences = INT32_MAX; }});
  ExpectRefused<P>(GoodDecode(), call, KVT_KERNEL_UNSUPPORTED, unbuilt);
  for (const auto& change : bad) {
    P params = GoodDecode();
    change.make(&params);
    EXPECT_EQ(kvt_decode_workspace_bytes(&params), 0U) << change.what;
  }
}

TEST(KernelParameters, OfPrefillAreChecked) {
  using P = kvt_prefill_params;
  const auto call = [](const P* p) { return kvt_prefill(p, nullptr, 0, nullptr); };
  auto bad = BadAttention<P>();
  bad.push_back({"no starts", [](P* p) { p->query_starts = nullptr; }});
  bad.push_back({"queries askew", [](P* p) { p->query_token_stride += 1; }});
  bad.push_back({"outputs askew", [](P* p) { p->output_token_stride += 1; }});
  bad.push_back({"less than no queries", [](P* p) { p->query_tokens = -1; }});
  bad.push_back({"less than no splits", [](P* p) { p->splits = -1; }});
  bad.push_back({"too many splits", [](P* p) { p->splits = KVT_PREFILL_MAX_SPLITS + 1; }});
  bad.push_back({"no scale", [](P* p) { p->softmax_scale = 0; }});
  bad.push_back({"tokens behind, in causal order",
                 [](P* p) { p->tokens_behind = static_cast<int32_t*>(Somewhere()); }});
  P good = GoodPrefill();
  good.query_tokens = 0;  // nothing to do: no workspace is asked for
  ExpectRefused<P>(good, call, KVT_KERNEL_INVALID_ARGUMENT, bad);
  ExpectRefused<P>(good, call, KVT_KERNEL_UNSUPPORTED, UnbuiltAttention<P>());
}

TEST(KernelParameters, OfSharedPrefixDecodeAreChecked) {
  using P = kvt_decode_shared_params;
  const auto call = [](const P* p) { return kvt_decode_shared(p, nullptr, 0, nullptr); };
  P good{
      .own = GoodDecode(), .prefixes = Sequences(), .members = static_cast<int32_t*>(Somewhere())};
  std::vector<Change<P>> bad = {
      {"no members", [](P* p) { p->members = nullptr; }},
      {"no prefixes", [](P* p) { p->prefixes.sequences = 0; }},
      {"no tables of prefixes", [](P* p) { p->prefixes.block_table = nullptr; }},
      {"no lengths of prefixes", [](P* p) { p->prefixes.kv_lengths = nullptr; }},
      {"prefixes shorter than nothing", [](P* p) { p->prefixes.max_kv_length = -1; }},
      {"no scale", [](P* p) { p->own.softmax_scale = 0; }},
      {"outputs askew", [](P* p) { p->own.output_sequence_stride += 1; }},
  };
  for (const auto& change : BadAttention<kvt_decode_params>()) {
    bad.push_back({change.what, [change](P* p) { change.make(&p->own); }});
  }
  ExpectRefused<P>(good, call, KVT_KERNEL_INVALID_ARGUMENT, bad);
  std::vector<Change<P>> unbuilt;
  for (const auto& change : UnbuiltAttention<kvt_decode_params>()) {
    unbuilt.push_back({change.what, [change](P* p) { change.make(&p->own); }});
  }
  ExpectRefused<P>(good, call, KVT_KERNEL_UNSUPPORTED, unbuilt);
}

kvt_mla_decode_params GoodMla() {
  kvt_mla_decode_params good{};
  good.query = good.output = Somewhere();
  good.latent = Somewhere();
  good.dtype = KVT_BF16;
  good.q_heads = 16;
  good.query_sequence_stride = 16 * KVT_MLA_QUERY_DIM;
  good.query_head_stride = KVT_MLA_QUERY_DIM;
  good.output_sequence_stride = 16 * KVT_MLA_LATENT_DIM;
  good.output_head_stride = KVT_MLA_LATENT_DIM;
  good.block_stride = 64 * KVT_MLA_QUERY_DIM;
  good.token_stride = KVT_MLA_QUERY_DIM;
  good.page_tokens = 64;
  good.sequences = Sequences();
  good.softmax_scale = 1;
  return good;
}

TEST(KernelParameters, OfMlaDecodeAreChecked) {
  using P = kvt_mla_decode_params;
  const P good = GoodMla();
  const auto call = [](const P* p) { return kvt_mla_decode(p, nullptr, 0, nullptr); };
  ExpectRefused<P>(good, call, KVT_KERNEL_INVALID_ARGUMENT,
                   {{"no query", [](P* p) { p->query = nullptr; }},
                    {"no output", [](P* p) { p->output = nullptr; }},
                    {"no latents", [](P* p) { p->latent = nullptr; }},
                    {"no block table", [](P* p) { p->sequences.block_table = nullptr; }},
                    {"no lengths", [](P* p) { p->sequences.kv_lengths = nullptr; }},
                    {"a query askew", [](P* p) { p->query = Askew(); }},
                    {"an output askew", [](P* p) { p->output = Askew(); }},
                    {"latents askew", [](P* p) { p->latent = Askew(); }},
                    {"tokens askew", [](P* p) { p->token_stride += 1; }},
                    {"no heads", [](P* p) { p->q_heads = 0; }},
                    {"pages of 3", [](P* p) { p->page_tokens = 3; }},
                    {"less than no sequences", [](P* p) { p->sequences.sequences = -1; }},
                    {"splits of 300", [](P* p) { p->split_tokens = 300; }},
                    {"no scale", [](P* p) { p->softmax_scale = 0; }},
                    {"an infinite scale", [](P* p) { p->softmax_scale = INFINITY; }},
                    {"a scale that is not a number", [](P* p) { p->softmax_scale = NAN; }}});
  ExpectRefused<P>(good, call, KVT_KERNEL_UNSUPPORTED,
                   {{"129 heads", [](P* p) { p->q_heads = 129; }},
                    {"fp8", [](P* p) { p->dtype = KVT_FP8_E4M3; }},
                    {"too many", [](P* p) { p->sequences.sequences = INT32_MAX; }}});
}

TEST(KernelParameters, OfKvWritesAreChecked) {
  using P = kvt_kv_write_params;
  P good{};
  good.key = good.value = Somewhere();
  good.dtype = KVT_BF16;
  good.key_token_stride = good.value_token_stride = 2 * 128;
  good.key_head_stride = good.value_head_stride = 128;
  good.slot_mapping = static_cast<int64_t*>(Somewhere());
  good.cache = Cache();
  good.rope = {KVT_ROPE_NEOX, 128, static_cast<int32_t*>(Somewhere()),
               static_cast<float*>(Somewhere())};
  const auto call = [](const P* p) { return kvt_kv_write(p, nullptr); };
  ExpectRefused<P>(
      good, call, KVT_KERNEL_INVALID_ARGUMENT,
      {{"no keys", [](P* p) { p->key = nullptr; }},
       {"no values", [](P* p) { p->value = nullptr; }},
       {"no slots", [](P* p) { p->slot_mapping = nullptr; }},
       {"no cache", [](P* p) { p->cache.key = nullptr; }},
       {"half a cache", [](P* p) { p->cache.value = nullptr; }},
       {"keys askew", [](P* p) { p->key = Askew(); }},
       {"values askew", [](P* p) { p->value = Askew(); }},
       {"a cache askew", [](P* p) { p->cache.key = Askew(); }},
       {"rows askew", [](P* p) { p->key_token_stride += 1; }},
       {"values' heads askew", [](P* p) { p->value_head_stride += 4; }},
       {"blocks askew", [](P* p) { p->cache.block_stride += 4; }},
       {"queries without a place", [](P* p) { p->query = Somewhere(), p->query_heads = 2; }},
       {"queries of no heads", [](P* p) { p->query = Somewhere(), p->query_output = Somewhere(); }},
       {"queries askew",
        [](P* p) { p->query = Askew(), p->query_output = Somewhere(), p->query_heads = 2; }},
       {"less than no tokens", [](P* p) { p->tokens = -1; }},
       {"pages of 3", [](P* p) { p->cache.page_tokens = 3; }},
       {"pages of 8", [](P* p) { p->cache.page_tokens = 8; }},
       {"pages of 512", [](P* p) { p->cache.page_tokens = 512; }},
       {"no heads", [](P* p) { p->cache.kv_heads = 0; }},
       {"no positions", [](P* p) { p->rope.positions = nullptr; }},
       {"no angles", [](P* p) { p->rope.cos_sin = nullptr; }},
       {"a rope of 24", [](P* p) { p->rope.rotary_dim = 24; }},
       {"a rope longer than the head", [](P* p) { p->rope.rotary_dim = 256; }},
       {"an unknown rope", [](P* p) { p->rope.style = static_cast<kvt_rope_style>(9); }},
       {"scales to be written nowhere", [](P* p) { p->dynamic_scales = 1; }}});
  ExpectRefused<P>(
      good, call, KVT_KERNEL_UNSUPPORTED,
      {{"heads of 96", [](P* p) { p->cache.head_dim = 96, p->rope.style = KVT_ROPE_NONE; }},
       {"heads of 512", [](P* p) { p->cache.head_dim = 512; }},
       {"inputs of fp32", [](P* p) { p->dtype = KVT_FP32; }},
       {"another cache", [](P* p) { p->cache.dtype = KVT_FP16; }}});
}

kvt_merge_lse_params GoodMerge() {
  kvt_merge_lse_params good{};
  good.partials = good.output = Somewhere();
  good.partial_lse = static_cast<float*>(Somewhere());
  good.partial_dtype = KVT_FP32;
  good.output_dtype = KVT_BF16;
  good.parts = 2, good.heads = 4, good.head_dim = 64;
  good.output_token_stride = 256, good.output_head_stride = 64;
  return good;
}

TEST(KernelParameters, OfMergesAreChecked) {
  using P = kvt_merge_lse_params;
  const P good = GoodMerge();
  const auto call = [](const P* p) { return kvt_merge_lse(p, nullptr); };
  ExpectRefused<P>(good, call, KVT_KERNEL_INVALID_ARGUMENT,
                   {{"no parts", [](P* p) { p->partials = nullptr; }},
                    {"no LSE", [](P* p) { p->partial_lse = nullptr; }},
                    {"no output", [](P* p) { p->output = nullptr; }},
                    {"parts askew", [](P* p) { p->partials = Askew(); }},
                    {"an output askew", [](P* p) { p->output = Askew(); }},
                    {"strides askew", [](P* p) { p->output_token_stride = 12; }},
                    {"none to merge", [](P* p) { p->parts = 0; }},
                    {"no heads", [](P* p) { p->heads = 0; }},
                    {"heads of 20", [](P* p) { p->head_dim = 20; }},
                    {"less than no tokens", [](P* p) { p->tokens = -1; }}});
  ExpectRefused<P>(good, call, KVT_KERNEL_UNSUPPORTED,
                   {{"parts of fp8", [](P* p) { p->partial_dtype = KVT_FP8_E4M3; }},
                    {"output of fp8", [](P* p) { p->output_dtype = KVT_FP8_E4M3; }}});
}

TEST(KernelParameters, ARefusalNamesTheFieldWhatItIsAndWhatIsBuilt) {
  kvt_decode_params decode = GoodDecode();
  decode.kv.head_dim = 96;
  EXPECT_EQ(kvt_decode(&decode, nullptr, 0, nullptr), KVT_KERNEL_UNSUPPORTED);
  EXPECT_STREQ(kvt_kernel_last_error_detail(),
               "kv.head_dim is 96; kernels are built for 64, 128 and 256");
  decode.query_dtype = KVT_FP32;
  EXPECT_EQ(kvt_decode_workspace_bytes(&decode), 0U);
  EXPECT_STREQ(kvt_kernel_last_error_detail(),
               "query_dtype is fp32 (3); kernels are built for bf16 and fp16");
  kvt_prefill_params prefill = GoodPrefill();
  prefill.soft_cap = NAN;
  EXPECT_EQ(kvt_prefill(&prefill, nullptr, 0, nullptr), KVT_KERNEL_INVALID_ARGUMENT);
  EXPECT_STREQ(kvt_kernel_last_error_detail(), "soft_cap must be finite and not negative");
  prefill = GoodPrefill();
  prefill.kv.kv_heads = 8;
  prefill.kv.head_stride = int64_t{1} << 29;
  EXPECT_EQ(kvt_prefill(&prefill, nullptr, 0, nullptr), KVT_KERNEL_UNSUPPORTED);
  EXPECT_STREQ(kvt_kernel_last_error_detail(),
               "kv.head_stride is 536870912; kernels are built for KV heads that lie within 2^31 "
               "elements");
  // Nothing uses the stride between heads of which there is one.
  prefill.kv.kv_heads = 1;
  prefill.q_heads = 8;
  prefill.kv.head_stride = int64_t{1} << 40;
  (void)kvt_prefill(&prefill, nullptr, 0, nullptr);
  EXPECT_THAT(kvt_kernel_last_error_detail(), testing::Not(testing::HasSubstr("kv.head_stride")));
}

TEST(KernelParameters, ARefusedDeviceIsNamedByEveryKindOfCall) {
  // Without a GPU none of these gets as far as a launch; with one this cannot be seen.
  const kvt_decode_params decode = GoodDecode();
  if (kvt_decode_workspace_bytes(&decode) != 0) GTEST_SKIP() << "a GPU is there";
  const std::string decode_says = kvt_kernel_last_error_detail();
  EXPECT_NE(decode_says.find("compute capability 8.0 and later"), std::string::npos) << decode_says;
  kvt_merge_lse_params merge = GoodMerge();
  merge.tokens = 1;
  EXPECT_EQ(kvt_merge_lse(&merge, nullptr), KVT_KERNEL_UNSUPPORTED);
  EXPECT_EQ(kvt_kernel_last_error_detail(), decode_says);
}

TEST(KernelParameters, ARefusedDeviceIsToldThatMlaIsHoppersAlone) {
  const kvt_mla_decode_params mla = GoodMla();
  if (kvt_mla_decode_workspace_bytes(&mla) != 0) GTEST_SKIP() << "a Hopper GPU is there";
  const std::string says = kvt_kernel_last_error_detail();
  EXPECT_NE(says.find("MLA decode kernels are built for"), std::string::npos) << says;
  EXPECT_NE(says.find("9.0"), std::string::npos) << says;
}

}  // namespace
}  // namespace kvtier::kernels
