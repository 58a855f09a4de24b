// SPDX-License-Identifier: Apache-2.0
// The C ABI's promises about arguments, errors and what needs no daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvtier/kvtier.h"
#include "kvtier/kvtier.hpp"
#include "tests/unit/client/c_header.h"

namespace {

using ::testing::HasSubstr;

TEST(CApi, IsUsableFromC) { EXPECT_EQ(kvt_test_use_from_c(), 0); }

TEST(CApi, NullAndUnsizedArgumentsArePreciseErrors) {
  kvt_connection* connection = nullptr;
  EXPECT_EQ(kvt_connect(nullptr, nullptr, &connection), KVT_INVALID_ARGUMENT);
  EXPECT_STREQ(kvt_last_error()->reason, "null_argument");
  EXPECT_THAT(kvt_last_error()->context, HasSubstr("socket_path (\"\": $KVTIER_SOCKET"));
  kvt_connect_options options{};
  EXPECT_EQ(kvt_connect("/nonexistent", &options, &connection), KVT_INVALID_ARGUMENT);
  EXPECT_STREQ(kvt_last_error()->reason, "bad_struct_size");
  EXPECT_EQ(kvt_ping(nullptr, nullptr), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_acquire(nullptr, nullptr, nullptr), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_sequence_append(nullptr, nullptr, 0), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_hint_blocks(nullptr, nullptr, 0, KVT_HINT_CLOSED, 0, nullptr),
            KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_region_hint(nullptr, nullptr, 0, KVT_HINT_CLOSED, 0, nullptr),
            KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_sequence_hint(nullptr, KVT_HINT_CLOSED, 0, nullptr), KVT_INVALID_ARGUMENT);
  EXPECT_EQ(kvt_is_connected(nullptr), 0);
  EXPECT_EQ(kvt_pool_block_bytes(nullptr), 0u);
  EXPECT_EQ(kvt_take_errors(nullptr, nullptr, 0, nullptr), 0u);
}

TEST(CApi, FreeingNothingIsAllowed) {
  kvt_disconnect(nullptr);
  kvt_pool_close(nullptr);
  kvt_sequence_close(nullptr);
  kvt_string_free(nullptr);
  kvt_pool_drop_stale_mappings(nullptr);
}

TEST(CApi, BadOptionsNameTheField) {
  kvt_connect_options options;
  kvt_connect_options_init(&options);
  options.request_timeout_ms = 0;
  kvt_connection* connection = nullptr;
  EXPECT_EQ(kvt_connect("/nonexistent", &options, &connection), KVT_INVALID_ARGUMENT);
  EXPECT_THAT(kvt_last_error()->context, HasSubstr("request_timeout_ms"));
  const std::string long_path(200, 'x');
  EXPECT_EQ(kvt_connect(long_path.c_str(), nullptr, &connection), KVT_INVALID_ARGUMENT);
  EXPECT_STREQ(kvt_last_error()->reason, "bad_socket_path");
}

TEST(CApi, EveryStatusAndMissHasAName) {
  EXPECT_STREQ(kvt_status_name(KVT_OK), "ok");
  for (kvt_status status = KVT_INVALID_ARGUMENT; status <= KVT_INTERNAL; ++status) {
    EXPECT_STRNE(kvt_status_name(status), "unknown");
  }
  EXPECT_STREQ(kvt_status_name(999), "unknown");
  EXPECT_STREQ(kvt_miss_name(KVT_MISS_CANCELLED), "cancelled");
  EXPECT_STREQ(kvt_miss_name(KVT_MISS_ERASED), "erased");
  EXPECT_STREQ(kvt_miss_name(KVT_MISS_SLOWER_THAN_COMPUTING), "slower_than_computing");
  EXPECT_STREQ(kvt_miss_name(KVT_MISS_AFTER_DEADLINE), "after_deadline");
  EXPECT_STREQ(kvt_miss_name(KVT_MISS_UNAVAILABLE), "unavailable");
  EXPECT_STREQ(kvt_miss_name(200), "other");
}

TEST(CApi, LayoutFollowsFromTheRecord) {
  kvt_model_record record;
  kvt_model_record_init(&record);
  record.name = "llama";
  record.groups[0].layers = 32;
  record.groups[0].kv_heads = 8;
  record.groups[0].k_head_dim = 128;
  record.groups[0].v_head_dim = 128;
  kvt_layout layout{};
  layout.size = sizeof(layout);
  ASSERT_EQ(kvt_layout_of(&record, 0, &layout), KVT_OK);
  EXPECT_EQ(layout.block_stride, 2u << 20);
  EXPECT_EQ(layout.layer_stride, 64u << 10);
  record.groups[0].layers = 0;
  EXPECT_EQ(kvt_layout_of(&record, 0, &layout), KVT_INVALID_ARGUMENT);
  record.groups[0].layers = 1;
  record.groups[0].dtype = 77;
  EXPECT_EQ(kvt_layout_of(&record, 0, &layout), KVT_UNSUPPORTED);
}

TEST(CApi, ExtraPairsMayComeInAnyOrderButOnce) {
  kvt_model_record record;
  kvt_model_record_init(&record);
  record.name = "m";
  record.groups[0].layers = record.groups[0].kv_heads = record.groups[0].k_head_dim =
      record.groups[0].v_head_dim = 1;
  const kvt_key_value pairs[] = {{"rope", "10000"}, {"quant", "none"}, {"quant", "none"}};
  record.extra = pairs;
  record.extra_count = 2;
  kvt_layout layout{};
  layout.size = sizeof(layout);
  EXPECT_EQ(kvt_layout_of(&record, 0, &layout), KVT_OK);
  record.extra_count = 3;
  EXPECT_EQ(kvt_layout_of(&record, 0, &layout), KVT_INVALID_ARGUMENT);
}

std::string Hex(const kvt_hash& hash) {
  std::string text;
  for (const uint8_t byte : hash.bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

TEST(HashBlocks, AgreesWithVllm) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 50; ++i) tokens.push_back(i);
  kvt_hash_options options;
  kvt_hash_options_init(&options);
  const auto hashes = kvt::HashBlocks(tokens, options);
  ASSERT_TRUE(hashes);
  ASSERT_EQ(hashes->size(), 4u);
  EXPECT_EQ(Hex((*hashes)[0]), "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749");
  EXPECT_EQ(Hex((*hashes)[2]), "117dad852830e0103c12d7c7f8b7cf58434ea8751d1f42ee07b1c93711e4da6c");
}

TEST(HashBlocks, ATailIsAShorterBlock) {
  const std::vector<uint32_t> tokens = {1, 2, 3, 4, 5, 6};
  kvt_hash_options options;
  kvt_hash_options_init(&options);
  options.block_tokens = 4;
  const auto together = kvt::HashBlocks(tokens, options);
  options.block_tokens = 2;
  const auto apart = kvt::HashBlocks(std::span(tokens).first(2), options);
  options.block_tokens = 4;
  const auto partial_block = kvt::HashBlocks(std::span(tokens).first(2), options);
  ASSERT_TRUE(together && apart && partial_block);
  EXPECT_EQ(together->size(), 2u);
  EXPECT_EQ(Hex((*apart)[0]), Hex((*partial_block)[0]));
}

TEST(HashBlocks, RefusesWhatItCannotHash) {
  kvt_hash_options options;
  kvt_hash_options_init(&options);
  const uint32_t tokens[32] = {};
  kvt_hash hashes[2];
  size_t count = 0;
  // Returns the reason of the refusal.
  const auto refused = [&](const uint32_t* given, size_t token_count, size_t capacity) {
    const kvt_status status =
        kvt_hash_blocks(&options, given, token_count, hashes, capacity, &count);
    EXPECT_EQ(status, KVT_INVALID_ARGUMENT);
    return std::string(kvt_last_error()->reason);
  };
  EXPECT_EQ(refused(tokens, 32, 1), "capacity_too_small");
  EXPECT_EQ(refused(nullptr, 32, 2), "null_argument");
  EXPECT_EQ(kvt_hash_blocks(&options, nullptr, 0, nullptr, 0, &count), KVT_OK);
  EXPECT_EQ(kvt_hash_blocks(&options, tokens, 32, hashes, 2, nullptr), KVT_INVALID_ARGUMENT);
  options.block_tokens = 0;
  EXPECT_EQ(refused(tokens, 32, 2), "bad_block_tokens");
  options.block_tokens = 16;
  kvt_prompt_identity identity;
  kvt_prompt_identity_init(&identity);
  options.identity = &identity;
  const kvt_multimodal_item items[] = {{"a", 10, 1}, {"b", 5, 1}};
  identity.items = items;
  identity.item_count = 2;
  EXPECT_EQ(refused(tokens, 32, 2), "bad_multimodal_item");
  identity.item_count = 1;
  options.recipe = KVT_HASH_SGLANG_1;
  EXPECT_EQ(refused(tokens, 32, 2), "bad_items");
  identity.item_count = 0;
  options.lookahead_tokens = 1;
  EXPECT_EQ(refused(tokens, 32, 2), "bad_lookahead_tokens");
  options.recipe = "sglang/2";
  EXPECT_EQ(refused(tokens, 32, 2), "bad_recipe");
}

TEST(HashBlocks, BlocksThatAreNotFollowedByTheLookaheadHaveNoHash) {
  kvt_hash_options options;
  kvt_hash_options_init(&options);
  options.lookahead_tokens = 2;
  const std::vector<uint32_t> tokens(34, 1);
  EXPECT_EQ(kvt::HashBlocks(std::span(tokens).first(33), options)->size(), 1u);
  EXPECT_EQ(kvt::HashBlocks(tokens, options)->size(), 2u);
}

}  // namespace
