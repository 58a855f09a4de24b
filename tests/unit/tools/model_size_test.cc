// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/model_size.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace kvtier {
namespace {

constexpr std::string_view kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16"})";

ModelSize Measure(std::string_view config, std::string_view dtype = "",
                  uint64_t tensor_parallel = 1) {
  const auto size = MeasureModel(config, dtype, tensor_parallel);
  EXPECT_TRUE(size) << size.error().ToString();
  return size ? *size : ModelSize();
}

std::string ReasonOf(std::string_view config, std::string_view dtype = "",
                     uint64_t tensor_parallel = 1) {
  const auto size = MeasureModel(config, dtype, tensor_parallel);
  return size ? "none" : size.error().reason;
}

TEST(ModelSizeTest, GroupedHeadsAndTheirSizeMakeTheBytesOfAToken) {
  const ModelSize size = Measure(kLlama);
  EXPECT_EQ(size.architecture, "LlamaForCausalLM");
  EXPECT_EQ(size.head_dim, 128u);
  EXPECT_EQ(size.BytesPerToken(), 128 * kKiB);
  EXPECT_TRUE(size.notes.empty());
}

TEST(ModelSizeTest, RanksShareHeadsAndKeepOneAtLeast) {
  EXPECT_EQ(Measure(kLlama, "", 4).BytesPerToken(), 32 * kKiB);
  EXPECT_EQ(Measure(kLlama, "", 16).kv_heads, 1u);
  EXPECT_EQ(ReasonOf(kLlama, "", 3), "bad_tensor_parallel");
}

TEST(ModelSizeTest, DtypeOfTheCacheMayDifferFromTheModels) {
  EXPECT_EQ(Measure(kLlama, "fp8").BytesPerToken(), 64 * kKiB);
  EXPECT_EQ(Measure(kLlama, "f32").BytesPerToken(), 256 * kKiB);
  EXPECT_EQ(ReasonOf(kLlama, "int3"), "bad_dtype");
}

TEST(ModelSizeTest, HeadSizeOfItsOwnIsTaken) {
  EXPECT_EQ(Measure(R"({"num_hidden_layers": 28, "num_attention_heads": 16, "hidden_size": 1024,
                        "num_key_value_heads": 8, "head_dim": 128, "dtype": "bfloat16"})")
                .BytesPerToken(),
            28u * 8 * 128 * 2 * 2);
}

TEST(ModelSizeTest, LatentAttentionKeepsOneVectorOnEveryRank) {
  constexpr std::string_view kConfig = R"({"num_hidden_layers": 61, "num_attention_heads": 128,
      "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "torch_dtype": "bfloat16"})";
  EXPECT_TRUE(Measure(kConfig).latent);
  EXPECT_EQ(Measure(kConfig).BytesPerToken(), 61u * 576 * 2);
  EXPECT_EQ(Measure(kConfig, "", 8).BytesPerToken(), 61u * 576 * 2);
}

TEST(ModelSizeTest, TextPartOfAModelOfMoreThanTextCounts) {
  EXPECT_EQ(Measure(R"({"architectures": ["Many"], "torch_dtype": "float16",
      "vision_config": {"num_hidden_layers": 99},
      "text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}})")
                .BytesPerToken(),
            2u * 4 * 16 * 2 * 2);
}

TEST(ModelSizeTest, OlderNamesAreUnderstood) {
  EXPECT_EQ(Measure(R"({"n_layer": 12, "n_head": 12, "n_embd": 768, "dtype": "float32"})")
                .BytesPerToken(),
            12u * 768 * 2 * 4);
  EXPECT_EQ(Measure(R"({"n_layer": 2, "n_head": 8, "hidden_size": 64, "multi_query": true,
                        "torch_dtype": "float16"})")
                .kv_heads,
            1u);
}

TEST(ModelSizeTest, LayersWithoutAttentionDoNotCountAndAreMentioned) {
  const ModelSize size = Measure(R"({"num_hidden_layers": 4, "num_attention_heads": 2,
      "hidden_size": 32, "torch_dtype": "bfloat16", "layer_types":
      ["linear_attention", "linear_attention", "linear_attention", "full_attention"]})");
  EXPECT_EQ(size.layers, 1u);
  EXPECT_EQ(size.notes.size(), 1u);
}

TEST(ModelSizeTest, WindowsAreCountedInFullAndMentioned) {
  const ModelSize size = Measure(R"({"num_hidden_layers": 2, "num_attention_heads": 2,
      "hidden_size": 32, "torch_dtype": "bfloat16",
      "layer_types": ["sliding_attention", "full_attention"]})");
  EXPECT_EQ(size.layers, 2u);
  EXPECT_EQ(size.notes.size(), 1u);
}

TEST(ModelSizeTest, AWindowWithoutAListOfLayersIsMentionedUnlessItIsSwitchedOff) {
  const auto notes = [](const std::string& more) {
    return Measure(R"({"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32,
        "torch_dtype": "bfloat16", "sliding_window": )" +
                   more + "}")
        .notes.size();
  };
  EXPECT_EQ(notes("4096"), 1u);
  EXPECT_EQ(notes("4096, \"use_sliding_window\": true"), 1u);
  EXPECT_EQ(notes("4096, \"use_sliding_window\": false"), 0u);
  EXPECT_EQ(notes("null"), 0u);
}

TEST(ModelSizeTest, HeadsThatSeveralRanksKeepAreMentioned) {
  EXPECT_TRUE(Measure(kLlama, "", 8).notes.empty());
  ASSERT_EQ(Measure(kLlama, "", 16).notes.size(), 1u);
  EXPECT_EQ(Measure(kLlama, "", 16).notes[0],
            "8 K and V heads for 16 ranks: several keep the same one");
}

TEST(ModelSizeTest, WhatIsNoModelIsRefused) {
  EXPECT_EQ(ReasonOf("nonsense"), "bad_json");
  EXPECT_EQ(ReasonOf("[]"), "bad_model_config");
  EXPECT_EQ(ReasonOf(R"({"num_hidden_layers": 2})"), "bad_model_config");
  EXPECT_EQ(ReasonOf(R"({"num_hidden_layers": -2})"), "bad_model_config");
  EXPECT_EQ(ReasonOf(R"({"num_hidden_layers": 2, "num_attention_heads": 2})"), "bad_model_config");
}

TEST(ModelSizeTest, TiersHoldWholeSlabsOfSlotsWithHeaders) {
  // A slab of 1 MiB takes 15 slots of 68 KiB, and no more with a header of its own.
  EXPECT_EQ(SlotsIn(10 * kMiB + kKiB, 64 * kKiB, kMiB, 0), 150u);
  EXPECT_EQ(SlotsIn(10 * kMiB, 64 * kKiB, kMiB, 4 * kKiB), 150u);
  EXPECT_EQ(SlotsIn(10 * kMiB, 2 * kMiB, kMiB, 0), 0u);
}

}  // namespace
}  // namespace kvtier
