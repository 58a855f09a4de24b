// SPDX-License-Identifier: Apache-2.0
#include "protocol/model_record.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/digest.h"
#include "tests/fuzz/sample_messages.h"
#include "tests/unit/protocol/hex.h"

namespace kvtier {
namespace {

ModelRecord Llama8B() {
  ModelRecord record;
  record.name = "meta-llama/Llama-3.1-8B";
  record.revision = "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b";
  record.layers = 32;
  record.kv_heads = 8;
  record.k_head_dim = record.v_head_dim = 128;
  record.extra = {{"rope_scaling", "llama3"}, {"rope_theta", "500000"}};
  return record;
}

TEST(ModelRecord, SizesAreThoseOfTheModel) {
  EXPECT_EQ(Llama8B().BytesPerToken(), 128u << 10);
  EXPECT_EQ(Llama8B().BlockBytes(), 2u << 20);
}

TEST(ModelRecord, EncodingIsFixed) {
  EXPECT_EQ(HexOf(wire::SampleModelRecord().Encode()),
            "4b56544d"  // magic
            "0100"      // version
            "03"        // bf16
            "01"        // block first
            "02000000010000000800000008000000100000000000000001000000"
            "040074696e79"
            "02007231"
            "1200766c6c6d2d7368613235362d63626f722f32"  // hash recipe
            "0100"
            "0a00726f70655f7468657461"
            "05003130303030");
}

TEST(ModelRecord, FingerprintIsTheEncodingsSha256) {
  const ModelRecord record = Llama8B();
  EXPECT_EQ(record.Fingerprint(), Sha256(record.Encode()));
}

TEST(ModelRecord, DecodesWhatItEncodes) {
  EXPECT_EQ(*ModelRecord::Decode(Llama8B().Encode()), Llama8B());
}

using Change = std::function<void(ModelRecord*)>;

TEST(ModelRecord, EveryFieldChangesTheFingerprint) {
  const Change changes[] = {
      [](ModelRecord* r) { r->name += "x"; },
      [](ModelRecord* r) { r->revision.clear(); },
      [](ModelRecord* r) { r->hash_recipe = "vllm-sha256-cbor/1"; },
      [](ModelRecord* r) { r->layers = 31; },
      [](ModelRecord* r) { r->kv_heads = 4; },
      [](ModelRecord* r) { r->k_head_dim = 64; },
      [](ModelRecord* r) { r->v_head_dim = 64; },
      [](ModelRecord* r) { r->dtype = KvDtype::kFloat16; },
      [](ModelRecord* r) { r->block_tokens = 32; },
      [](ModelRecord* r) { r->tensor_parallel_size = 2; },
      [](ModelRecord* r) { r->extra[0].second = "yarn"; },
      [](ModelRecord* r) { r->extra.pop_back(); },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    ModelRecord changed = Llama8B();
    changes[i](&changed);
    ASSERT_TRUE(changed.Validate().has_value()) << i;
    EXPECT_NE(changed.Fingerprint(), Llama8B().Fingerprint()) << i;
  }
}

struct BadCase {
  const char* reason;
  Change change;
};

TEST(ModelRecord, RefusesEachBadFieldWithItsReason) {
  const BadCase cases[] = {
      {"bad_name", [](ModelRecord* r) { r->name.clear(); }},
      {"bad_name", [](ModelRecord* r) { r->name.assign(kMaxModelNameBytes + 1, 'n'); }},
      {"bad_name", [](ModelRecord* r) { r->name = "a\nb"; }},
      {"bad_revision", [](ModelRecord* r) { r->revision = "\xff"; }},
      {"bad_hash_recipe", [](ModelRecord* r) { r->hash_recipe.clear(); }},
      {"bad_hash_recipe", [](ModelRecord* r) { r->hash_recipe = "sglang"; }},
      {"bad_hash_recipe", [](ModelRecord* r) { r->hash_recipe = "/1"; }},
      {"bad_hash_recipe", [](ModelRecord* r) { r->hash_recipe = "sglang/"; }},
      {"bad_hash_recipe", [](ModelRecord* r) { r->hash_recipe = "sglang/01"; }},
      {"bad_hash_recipe", [](ModelRecord* r) { r->hash_recipe = "sglang/1 "; }},
      {"bad_hash_recipe", [](ModelRecord* r) { r->hash_recipe = "SGLang/1"; }},
      {"bad_hash_recipe",
       [](ModelRecord* r) { r->hash_recipe.assign(kMaxHashRecipeBytes - 1, 'n').append("/1"); }},
      {"bad_layers", [](ModelRecord* r) { r->layers = 0; }},
      {"bad_layers", [](ModelRecord* r) { r->layers = UINT32_MAX; }},
      {"bad_kv_heads", [](ModelRecord* r) { r->kv_heads = 0; }},
      {"bad_kv_heads", [](ModelRecord* r) { r->kv_heads = kMaxModelKvHeads + 1; }},
      {"bad_k_head_dim", [](ModelRecord* r) { r->k_head_dim = 0; }},
      {"bad_v_head_dim", [](ModelRecord* r) { r->v_head_dim = kMaxModelHeadDim + 1; }},
      {"bad_block_tokens", [](ModelRecord* r) { r->block_tokens = 0; }},
      {"bad_block_tokens", [](ModelRecord* r) { r->block_tokens = kMaxModelBlockTokens + 1; }},
      {"bad_tensor_parallel_size", [](ModelRecord* r) { r->tensor_parallel_size = 0; }},
      {"bad_tensor_parallel_rank", [](ModelRecord* r) { r->tensor_parallel_rank = 1; }},
      {"too_many_extra",
       [](ModelRecord* r) {
         r->extra.resize(kMaxModelExtraCount + 1, {"k", ""});
       }},
      {"extra_not_sorted", [](ModelRecord* r) { std::swap(r->extra[0], r->extra[1]); }},
      {"extra_not_sorted", [](ModelRecord* r) { r->extra[1] = r->extra[0]; }},
      {"bad_extra_key", [](ModelRecord* r) { r->extra[0].first.clear(); }},
      {"bad_extra_value", [](ModelRecord* r) { r->extra[0].second.assign(257, 'v'); }},
      {"block_too_large", [](ModelRecord* r) { r->layers = r->kv_heads = r->block_tokens = 1024; }},
      {"model_dtype", [](ModelRecord* r) { r->dtype = static_cast<KvDtype>(7); }},
      {"model_dtype", [](ModelRecord* r) { r->dtype = static_cast<KvDtype>(0); }},
      {"model_layout", [](ModelRecord* r) { r->layout = static_cast<KvLayoutKind>(2); }},
  };
  for (const BadCase& bad : cases) {
    ModelRecord record = Llama8B();
    bad.change(&record);
    const Status status = record.Validate();
    ASSERT_FALSE(status.has_value()) << bad.reason;
    EXPECT_EQ(status.error().reason, bad.reason);
    const auto decoded = ModelRecord::Decode(record.Encode());
    ASSERT_FALSE(decoded.has_value()) << bad.reason;
    EXPECT_EQ(decoded.error().reason, bad.reason);
  }
}

TEST(ModelRecord, ARecipeOfTheClientsOwnIsTaken) {
  ModelRecord record = Llama8B();
  record.hash_recipe = "my-engine_2.0/17";
  EXPECT_TRUE(record.Validate().has_value());
}

TEST(ModelRecord, OneTensorWithoutValuesIsAModel) {
  ModelRecord record = Llama8B();
  record.layers = 61;
  record.kv_heads = 1;
  record.k_head_dim = 576;
  record.v_head_dim = 0;
  ASSERT_TRUE(record.Validate().has_value());
  EXPECT_EQ(record.BlockBytes(), 61u * record.block_tokens * 576 * 2);
  EXPECT_EQ(ModelRecord::Decode(record.Encode()).value(), record);
}

TEST(ModelRecord, LargestGeometryDoesNotOverflow) {
  ModelRecord record = Llama8B();
  record.layers = record.kv_heads = record.block_tokens = 1024;
  record.k_head_dim = record.v_head_dim = kMaxModelHeadDim;
  record.dtype = KvDtype::kFloat32;
  EXPECT_EQ(record.BlockBytes(), uint64_t{1} << 45);
}

TEST(ModelRecord, RefusesEveryTruncation) {
  const std::vector<std::byte> bytes = Llama8B().Encode();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto record = ModelRecord::Decode(std::span(bytes).first(size));
    ASSERT_FALSE(record.has_value()) << size;
    EXPECT_EQ(record.error().reason, "truncated_model") << size;
  }
}

TEST(ModelRecord, RefusesTrailingBytesWrongMagicAndVersion) {
  std::vector<std::byte> bytes = Llama8B().Encode();
  bytes.push_back(std::byte{0});
  EXPECT_EQ(ModelRecord::Decode(bytes).error().reason, "trailing_bytes");
  bytes[4] = std::byte{2};
  EXPECT_EQ(ModelRecord::Decode(bytes).error().reason, "model_version");
  bytes[0] = std::byte{0};
  EXPECT_EQ(ModelRecord::Decode(bytes).error().reason, "bad_model_magic");
}

TEST(ModelRecord, DtypesHaveNamesAndSizes) {
  EXPECT_EQ(KvDtypeName(KvDtype::kBfloat16), "bf16");
  EXPECT_EQ(KvDtypeBytes(KvDtype::kFloat32), 4u);
  EXPECT_EQ(KvDtypeBytes(KvDtype::kFloat16), 2u);
  EXPECT_EQ(KvDtypeBytes(KvDtype::kFloat8E4m3), 1u);
}

}  // namespace
}  // namespace kvtier
