// SPDX-License-Identifier: Apache-2.0
#include "protocol/model_record.h"

#include <gtest/gtest.h>

#include <functional>
#include <span>

#include "base/digest.h"
#include "tests/fuzz/sample_messages.h"
#include "tests/unit/protocol/hex.h"

namespace kvtier {
namespace {

ModelRecord Llama8B() {
  ModelRecord record;
  record.name = "meta-llama/Llama-3.1-8B";
  record.revision = "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b";
  record.groups[0].layers = 32;
  record.groups[0].kv_heads = 8;
  record.groups[0].k_head_dim = record.groups[0].v_head_dim = 128;
  record.extra = {{"rope_scaling", "llama3"}, {"rope_theta", "500000"}};
  return record;
}

TEST(ModelRecord, SizesAreThoseOfTheModel) {
  EXPECT_EQ(Llama8B().groups[0].LayerBytes(), 64u << 10);
  EXPECT_EQ(Llama8B().groups[0].BlockBytes(), 2u << 20);
}

TEST(ModelRecord, EncodingIsFixed) {
  EXPECT_EQ(HexOf(wire::SampleModelRecord().Encode()),
            "4b56544d"  // magic
            "0200"      // version
            "0000000001000000"
            "040074696e79"
            "02007231"
            "1200766c6c6d2d7368613235362d63626f722f32"  // hash recipe
            "0100"
            "0a00726f70655f7468657461"
            "05003130303030"
            "01"    // one group
            "0100"  // found by all blocks, not replicated
            "0301"  // bf16, block first
            "00000000020000000100000008000000080000000000000010000000"
            "0000000000000000");
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
      [](ModelRecord* r) { r->groups[0].layers = 31; },
      [](ModelRecord* r) { r->groups[0].kv_heads = 4; },
      [](ModelRecord* r) { r->groups[0].k_head_dim = 64; },
      [](ModelRecord* r) { r->groups[0].v_head_dim = 64; },
      [](ModelRecord* r) { r->groups[0].dtype = KvDtype::kFloat16; },
      [](ModelRecord* r) { r->groups[0].block_tokens = 32; },
      [](ModelRecord* r) { r->groups[0].scale_bytes = 4; },
      [](ModelRecord* r) { r->groups[0].replicated = true; },
      [](ModelRecord* r) {
        r->groups[0].hit_rule = HitRule::kTrailing;
        r->groups[0].window_tokens = 1024;
      },
      [](ModelRecord* r) { r->groups.push_back(r->groups[0]); },
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

// Neither is one accepted that was encoded all the same.
void ExpectRefused(std::span<const BadCase> cases) {
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
      {"bad_layers", [](ModelRecord* r) { r->groups[0].layers = 0; }},
      {"bad_layers", [](ModelRecord* r) { r->groups[0].layers = UINT32_MAX; }},
      {"bad_kv_heads", [](ModelRecord* r) { r->groups[0].kv_heads = 0; }},
      {"bad_kv_heads", [](ModelRecord* r) { r->groups[0].kv_heads = kMaxModelKvHeads + 1; }},
      {"bad_k_head_dim", [](ModelRecord* r) { r->groups[0].k_head_dim = 0; }},
      {"bad_v_head_dim", [](ModelRecord* r) { r->groups[0].v_head_dim = kMaxModelHeadDim + 1; }},
      {"bad_block_tokens", [](ModelRecord* r) { r->groups[0].block_tokens = 0; }},
      {"bad_block_tokens",
       [](ModelRecord* r) { r->groups[0].block_tokens = kMaxModelBlockTokens + 1; }},
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
      {"block_too_large",
       [](ModelRecord* r) {
         r->groups[0].layers = r->groups[0].kv_heads = r->groups[0].block_tokens = 1024;
       }},
  };
  ExpectRefused(cases);
}

TEST(ModelRecord, RefusesEachBadGroupWithItsReason) {
  const BadCase cases[] = {
      {"bad_group_count", [](ModelRecord* r) { r->groups.clear(); }},
      {"bad_group_count", [](ModelRecord* r) { r->groups.resize(17, r->groups[0]); }},
      {"bad_window_tokens", [](ModelRecord* r) { r->groups[0].window_tokens = 1; }},
      {"bad_window_tokens", [](ModelRecord* r) { r->groups[0].hit_rule = HitRule::kTrailing; }},
      {"bad_scale_bytes", [](ModelRecord* r) { r->groups[0].scale_bytes = 1025; }},
      {"bad_kv_heads", [](ModelRecord* r) { r->groups[0].layer_bytes = 1; }},
      {"bad_k_head_dim",
       [](ModelRecord* r) {
         r->groups[0].layer_bytes = 1;
         r->groups[0].kv_heads = 0;
       }},
      {"bad_layer_bytes",
       [](ModelRecord* r) { r->groups[0] = {.hit_rule = HitRule::kState, .layers = 1}; }},
      {"bad_layer_bytes",
       [](ModelRecord* r) {
         r->groups[0] = {.layers = 1, .layer_bytes = kMaxModelBlockBytes + 1};
       }},
      {"bad_window_tokens",
       [](ModelRecord* r) {
         r->groups[0] = {.hit_rule = HitRule::kTrailing, .layers = 1, .layer_bytes = 4096};
       }},
      {"bad_kv_heads", [](ModelRecord* r) { r->groups[0].hit_rule = HitRule::kState; }},
      {"bad_layers", [](ModelRecord* r) { r->groups.push_back({}); }},
      {"model_hit_rule", [](ModelRecord* r) { r->groups[0].hit_rule = static_cast<HitRule>(4); }},
      {"model_dtype", [](ModelRecord* r) { r->groups[0].dtype = static_cast<KvDtype>(7); }},
      {"model_dtype", [](ModelRecord* r) { r->groups[0].dtype = static_cast<KvDtype>(0); }},
      {"model_layout", [](ModelRecord* r) { r->groups[0].layout = static_cast<KvLayoutKind>(3); }},
      {"model_layout", [](ModelRecord* r) { r->groups[0].layout = static_cast<KvLayoutKind>(0); }},
      {"model_layout",
       [](ModelRecord* r) {
         r->groups[0].layout = KvLayoutKind::kInterleaved;
         r->groups[0].v_head_dim = 0;
       }},
      {"model_layout",
       [](ModelRecord* r) {
         r->groups[0] = {.layers = 1, .layout = KvLayoutKind::kInterleaved, .layer_bytes = 4096};
       }},
  };
  ExpectRefused(cases);
}

TEST(ModelRecord, ARecipeOfTheClientsOwnIsTaken) {
  ModelRecord record = Llama8B();
  record.hash_recipe = "my-engine_2.0/17";
  EXPECT_TRUE(record.Validate().has_value());
}

TEST(ModelRecord, InterleavedBlocksAreThoseOfAnotherModel) {
  ModelRecord record = Llama8B();
  record.groups[0].layout = KvLayoutKind::kInterleaved;
  ASSERT_TRUE(record.Validate().has_value());
  EXPECT_EQ(ModelRecord::Decode(record.Encode()).value(), record);
  EXPECT_EQ(record.groups[0].BlockBytes(), Llama8B().groups[0].BlockBytes());
  EXPECT_NE(record.Encode(), Llama8B().Encode());
}

TEST(ModelRecord, OneTensorWithoutValuesIsAModel) {
  ModelRecord record = Llama8B();
  record.groups[0].layers = 61;
  record.groups[0].kv_heads = 1;
  record.groups[0].k_head_dim = 576;
  record.groups[0].v_head_dim = 0;
  ASSERT_TRUE(record.Validate().has_value());
  EXPECT_EQ(record.groups[0].BlockBytes(), 61u * record.groups[0].block_tokens * 576 * 2);
  EXPECT_EQ(ModelRecord::Decode(record.Encode()).value(), record);
}

// Three layers of linear attention and one of full attention, four times.
ModelRecord Hybrid() {
  ModelRecord record = Llama8B();
  record.groups[0].layers = 4;
  record.groups.push_back(
      {.hit_rule = HitRule::kState, .layers = 12, .block_tokens = 512, .layer_bytes = 1u << 20});
  return record;
}

TEST(ModelRecord, AHybridHasAGroupOfStates) {
  const ModelRecord record = Hybrid();
  ASSERT_TRUE(record.Validate().has_value());
  EXPECT_EQ(record.groups[1].BlockBytes(), 12u << 20);
  EXPECT_EQ(ModelRecord::Decode(record.Encode()).value(), record);
}

TEST(ModelRecord, AGroupWithEachHitRuleMayBeOpaque) {
  for (const HitRule rule : {HitRule::kAll, HitRule::kTrailing, HitRule::kState}) {
    ModelRecord record = Llama8B();
    record.groups[0] = {.hit_rule = rule,
                        .window_tokens = rule == HitRule::kTrailing ? 1024u : 0u,
                        .layers = 3,
                        .block_tokens = 32,
                        .layer_bytes = 12345};
    ASSERT_TRUE(record.Validate().has_value());
    EXPECT_TRUE(record.groups[0].IsOpaque());
    EXPECT_EQ(record.groups[0].BlockBytes(), 3u * 12345);
    EXPECT_EQ(ModelRecord::Decode(record.Encode()).value(), record);
  }
}

TEST(ModelRecord, BlocksOfOpaqueGroupsAreFoundByTheirSize) {
  ModelRecord record = Llama8B(), other = record;
  record.groups[0] = {.layers = 32, .layer_bytes = 64u << 10};
  other.groups[0] = {.layers = 32, .layer_bytes = 32u << 10};
  EXPECT_NE(record.GroupFingerprint(0), other.GroupFingerprint(0));
  EXPECT_NE(record.GroupFingerprint(0), Llama8B().GroupFingerprint(0));
}

TEST(ModelRecord, ScalesLieBesideTheTokens) {
  ModelRecord record = Llama8B();
  record.groups[0].dtype = KvDtype::kFloat8E4m3;
  record.groups[0].scale_bytes = 8;
  ASSERT_TRUE(record.Validate().has_value());
  EXPECT_EQ(record.groups[0].LayerBytes(), 16u * 8 * (256 + 8));
}

TEST(ModelRecord, AGroupsBlocksAreFoundByItsNumberAndGeometry) {
  ModelRecord record = Hybrid();
  record.groups.push_back(record.groups[0]);
  EXPECT_NE(record.GroupFingerprint(0), record.GroupFingerprint(1));
  EXPECT_NE(record.GroupFingerprint(0), record.GroupFingerprint(2));
  // The other groups may change without this one's blocks becoming other ones.
  EXPECT_EQ(record.GroupFingerprint(0), Hybrid().GroupFingerprint(0));
}

TEST(ModelRecord, RanksShareOnlyReplicatedGroups) {
  ModelRecord first = Hybrid(), second = Hybrid();
  first.groups[0].replicated = second.groups[0].replicated = true;
  first.tensor_parallel_size = second.tensor_parallel_size = 2;
  second.tensor_parallel_rank = 1;
  EXPECT_EQ(first.GroupFingerprint(0), second.GroupFingerprint(0));
  EXPECT_NE(first.GroupFingerprint(1), second.GroupFingerprint(1));
}

TEST(ModelRecord, AFlagHasOneEncoding) {
  std::vector<std::byte> bytes = Llama8B().Encode();
  bytes[bytes.size() - 39] = std::byte{2};
  EXPECT_EQ(ModelRecord::Decode(bytes).error().reason, "bad_replicated");
}

TEST(ModelRecord, LargestGeometryDoesNotOverflow) {
  ModelRecord record = Llama8B();
  record.groups[0].layers = record.groups[0].kv_heads = record.groups[0].block_tokens = 1024;
  record.groups[0].k_head_dim = record.groups[0].v_head_dim = kMaxModelHeadDim;
  record.groups[0].dtype = KvDtype::kFloat32;
  EXPECT_EQ(record.groups[0].BlockBytes(), uint64_t{1} << 45);
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
  bytes[4] = std::byte{3};
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
