// SPDX-License-Identifier: Apache-2.0
#include "protocol/block_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

// Where the vectors lie; given by the build.
#ifndef KVTIER_TEST_DATA
#error "KVTIER_TEST_DATA is not defined"
#endif

namespace kvtier {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

json::array LoadCases(const std::string& name) {
  std::ifstream file(std::string(KVTIER_TEST_DATA "/") + name);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return json::parse(text).as_object().at("cases").as_array();
}

std::string TextOf(const json::value& value) { return json::value_to<std::string>(value); }

std::vector<uint32_t> TokensOf(const json::value& one_case) {
  std::vector<uint32_t> tokens;
  for (const json::value& token : one_case.at("tokens").as_array()) {
    tokens.push_back(token.to_number<uint32_t>());
  }
  return tokens;
}

std::vector<std::byte> BytesOfHex(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int value = std::stoi(std::string(hex.substr(i, 2)), nullptr, 16);
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

ExtraKey KeyOf(const json::value& value) {
  if (value.is_string()) return ExtraKey::Text(value.as_string());
  if (value.is_object()) return ExtraKey::Bytes(BytesOfHex(TextOf(value.at("bytes"))));
  if (!value.is_array()) return ExtraKey::Integer(value.to_number<int64_t>());
  ExtraKey::List items;
  for (const json::value& item : value.as_array()) items.push_back(KeyOf(item));
  return ExtraKey::Tuple(std::move(items));
}

ExtraKeys KeysOf(const json::value& value) {
  ExtraKeys keys;
  if (value.is_null()) return keys;
  for (const json::value& item : value.as_array()) keys.push_back(KeyOf(item));
  return keys;
}

// The tokens of block `index`; the last may be partial.
std::span<const uint32_t> BlockOf(std::span<const uint32_t> tokens, size_t block_tokens,
                                  size_t index) {
  const size_t first = index * block_tokens;
  return tokens.subspan(first, std::min(block_tokens, tokens.size() - first));
}

// --- the vectors that came with the design ---

TEST(BlockHashVectors, GivenOnesAgree) {
  const json::array cases = LoadCases("block_hash.json");
  ASSERT_EQ(cases.size(), 6u);
  for (const json::value& one : cases) {
    const std::vector<uint32_t> tokens = TokensOf(one);
    const size_t block_tokens = one.at("block_tokens").to_number<size_t>();
    BlockHash parent = RootHash(TextOf(one.at("seed")));
    EXPECT_EQ(parent.Hex(), TextOf(one.at("root")));
    const json::array& hashes = one.at("block_hashes").as_array();
    ASSERT_EQ(hashes.size(), tokens.size() / block_tokens);
    for (size_t i = 0; i < hashes.size(); ++i) {
      ExtraKeys keys = KeysOf(one.at("extra_every_block"));
      if (i == 0 && !one.at("extra_first_block").is_null()) {
        keys = KeysOf(one.at("extra_first_block"));
      }
      parent = HashBlock(parent, BlockOf(tokens, block_tokens, i), keys);
      EXPECT_EQ(parent.Hex(), TextOf(hashes[i])) << TextOf(one.at("name")) << ", block " << i;
    }
  }
}

// --- those of make_block_hash_vectors.py ---

TEST(BlockHashVectors, IndependentOnesAgree) {
  const json::array cases = LoadCases("block_hash_more.json");
  ASSERT_GE(cases.size(), 48u);
  for (const json::value& one : cases) {
    const std::vector<uint32_t> tokens = TokensOf(one);
    const size_t block_tokens = one.at("block_tokens").to_number<size_t>();
    BlockHash parent = RootHash(TextOf(one.at("seed")));
    EXPECT_EQ(parent.Hex(), TextOf(one.at("root")));
    const json::array& hashes = one.at("block_hashes").as_array();
    for (size_t i = 0; i < hashes.size(); ++i) {
      const ExtraKeys keys = KeysOf(one.at("extra_keys").as_array()[i]);
      parent = HashBlock(parent, BlockOf(tokens, block_tokens, i), keys);
      EXPECT_EQ(parent.Hex(), TextOf(hashes[i])) << TextOf(one.at("name")) << ", block " << i;
    }
  }
}

PromptIdentity IdentityOf(const json::object& object) {
  PromptIdentity identity;
  const auto take = [&](const char* name, std::optional<std::string>* target) {
    if (const json::value* const value = object.if_contains(name)) *target = TextOf(*value);
  };
  take("seed", &identity.seed);
  take("lora_name", &identity.lora_name);
  take("lora", &identity.lora_name);
  take("lora_path", &identity.lora_path);
  take("cache_salt", &identity.cache_salt);
  take("extra_key", &identity.extra_key);
  for (const char* const name : {"media", "items"}) {
    if (!object.contains(name)) continue;
    for (const json::value& item : object.at(name).as_array()) {
      const json::array& fields = item.as_array();
      identity.media.push_back(
          {TextOf(fields[0]), fields[1].to_number<uint64_t>(), fields[2].to_number<uint64_t>()});
    }
  }
  if (object.contains("prompt_embeds")) {
    for (const json::value& digest : object.at("prompt_embeds").as_array()) {
      identity.prompt_embeds.push_back(BlockHash::FromHex(TextOf(digest)).value());
    }
  }
  return identity;
}

TEST(BlockHasher, HashesSequencesWithAnIdentityAsTheVectorsDo) {
  size_t checked = 0;
  for (const json::value& one : LoadCases("block_hash_more.json")) {
    if (!one.as_object().contains("identity")) continue;
    const std::vector<uint32_t> tokens = TokensOf(one);
    const auto block_tokens = one.at("block_tokens").to_number<uint32_t>();
    PromptIdentity identity = IdentityOf(one.at("identity").as_object());
    identity.seed = TextOf(one.at("seed"));
    BlockHasher hasher(block_tokens, HashRecipe::kVllmSha256Cbor1, std::move(identity));
    hasher.Extend(tokens);
    const json::array& hashes = one.at("block_hashes").as_array();
    const size_t full = tokens.size() / block_tokens;
    ASSERT_EQ(hasher.hashes().size(), full);
    for (size_t i = 0; i < full; ++i) {
      EXPECT_EQ(hasher.hashes()[i].Hex(), TextOf(hashes[i])) << TextOf(one.at("name"));
    }
    if (hashes.size() > full) {
      const std::span<const uint32_t> tail = BlockOf(tokens, block_tokens, full);
      EXPECT_EQ(hasher.HashAfter(full, tail).Hex(), TextOf(hashes[full])) << TextOf(one.at("name"));
    }
    ++checked;
  }
  EXPECT_EQ(checked, 8u);
}

// --- those of make_engine_hash_vectors.py, by the engines' own code ---

TEST(BlockHasher, HashesByEachRecipeAsTheEngineOfItsNameDoes) {
  const json::array cases = LoadCases("engine_hashes.json");
  ASSERT_GE(cases.size(), 243u);
  size_t by_recipe[3] = {};
  for (const json::value& one : cases) {
    const json::object& fields = one.as_object();
    const Result<HashRecipe> recipe = ParseHashRecipe(TextOf(one.at("recipe")));
    ASSERT_TRUE(recipe) << recipe.error().ToString();
    PromptIdentity identity;
    if (fields.contains("identity")) identity = IdentityOf(one.at("identity").as_object());
    ASSERT_TRUE(identity.CheckFor(*recipe)) << TextOf(one.at("name"));
    const uint32_t lookahead =
        fields.contains("lookahead_tokens") ? one.at("lookahead_tokens").to_number<uint32_t>() : 0;
    const auto block_tokens = one.at("block_tokens").to_number<uint32_t>();
    BlockHasher hasher(block_tokens, *recipe, std::move(identity), lookahead);
    const std::vector<uint32_t> tokens = TokensOf(one);
    hasher.Extend(tokens);
    std::vector<BlockHash> made = hasher.hashes();
    const json::array& hashes = one.at("hashes").as_array();
    // SGLang hashes the partial page at the end, too.
    if (hashes.size() > made.size()) {
      made.push_back(hasher.HashAfter(made.size(), BlockOf(tokens, block_tokens, made.size())));
    }
    ASSERT_EQ(made.size(), hashes.size()) << TextOf(one.at("name"));
    for (size_t i = 0; i < hashes.size(); ++i) {
      EXPECT_EQ(made[i].Hex(), TextOf(hashes[i]))
          << TextOf(one.at("recipe")) << ", " << TextOf(one.at("name")) << ", block " << i;
    }
    ++by_recipe[static_cast<size_t>(*recipe)];
  }
  for (const size_t count : by_recipe) EXPECT_GE(count, 50u);
}

// --- recipes ---

TEST(HashRecipe, NamesAreReadBackAndOthersAreRefusedWithThoseThatAreKnown) {
  for (const auto recipe :
       {HashRecipe::kVllmSha256Cbor1, HashRecipe::kVllmSha256Cbor2, HashRecipe::kSglang1}) {
    EXPECT_EQ(ParseHashRecipe(HashRecipeName(recipe)).value(), recipe);
  }
  const Result<HashRecipe> other = ParseHashRecipe("sglang/2");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().reason, "bad_recipe");
  EXPECT_EQ(other.error().context,
            "sglang/2, not vllm-sha256-cbor/1, vllm-sha256-cbor/2, sglang/1");
}

TEST(HashRecipe, WhatARecipeDoesNotHashIsRefusedByName) {
  PromptIdentity identity;
  identity.extra_key = "";
  EXPECT_EQ(identity.CheckFor(HashRecipe::kVllmSha256Cbor2).error().reason, "bad_extra_key");
  EXPECT_TRUE(identity.CheckFor(HashRecipe::kSglang1));
  identity = {.lora_name = "", .cache_salt = "s"};
  EXPECT_EQ(identity.CheckFor(HashRecipe::kSglang1).error().reason, "bad_lora");
  EXPECT_TRUE(identity.CheckFor(HashRecipe::kVllmSha256Cbor1));
}

BlockHash FirstHash(HashRecipe recipe, PromptIdentity identity) {
  const std::vector<uint32_t> tokens(16, 7);
  BlockHasher hasher(16, recipe, std::move(identity));
  hasher.Extend(tokens);
  return hasher.hashes()[0];
}

TEST(HashRecipe, ASaltThatLooksLikeALorasNameDiffersFromVersion2On) {
  const PromptIdentity lora{.lora_name = "sql"}, salt{.cache_salt = "sql"};
  EXPECT_EQ(FirstHash(HashRecipe::kVllmSha256Cbor1, lora),
            FirstHash(HashRecipe::kVllmSha256Cbor1, salt));
  EXPECT_NE(FirstHash(HashRecipe::kVllmSha256Cbor2, lora),
            FirstHash(HashRecipe::kVllmSha256Cbor2, salt));
}

// --- the keys of a block ---

ExtraKey Medium(const char* content_hash, int64_t offset) {
  return ExtraKey::Tuple({ExtraKey::Text(content_hash), ExtraKey::Integer(offset)});
}

BlockHasher BareHasher(PromptIdentity identity) {
  return BlockHasher(16, HashRecipe::kVllmSha256Cbor1, std::move(identity));
}

TEST(ExtraKeys, NothingGivesNoKeys) { EXPECT_THAT(BlockHasher(16).KeysOf(0, 16), IsEmpty()); }

TEST(ExtraKeys, SaltIsInTheFirstBlockOnly) {
  const BlockHasher hasher = BareHasher({.cache_salt = "s"});
  EXPECT_THAT(hasher.KeysOf(0, 16), ElementsAre(ExtraKey::Text("s")));
  EXPECT_THAT(hasher.KeysOf(1, 16), IsEmpty());
}

TEST(ExtraKeys, MediaAreInEveryBlockTheyOverlapWithTheirOffset) {
  const BlockHasher hasher = BareHasher({.media = {{"image", 10, 22}, {"sound", 40, 1}}});
  EXPECT_THAT(hasher.KeysOf(0, 10), IsEmpty());
  EXPECT_THAT(hasher.KeysOf(0, 16), ElementsAre(Medium("image", 10)));
  EXPECT_THAT(hasher.KeysOf(1, 16), ElementsAre(Medium("image", -6)));
  EXPECT_THAT(hasher.KeysOf(2, 8), IsEmpty());
  EXPECT_THAT(hasher.KeysOf(2, 16), ElementsAre(Medium("sound", 8)));
}

TEST(ExtraKeys, OrderIsLoraMediaSalt) {
  const PromptIdentity identity{
      .lora_name = "lora", .cache_salt = "salt", .media = {{"image", 0, 4}}};
  EXPECT_THAT(BareHasher(identity).KeysOf(0, 16),
              ElementsAre(ExtraKey::Text("lora"), Medium("image", 0), ExtraKey::Text("salt")));
}

// --- the hasher ---

std::vector<uint32_t> Counting(uint32_t count) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(i);
  return tokens;
}

TEST(BlockHasher, ExtendingStepByStepEqualsExtendingAtOnce) {
  const std::vector<uint32_t> tokens = Counting(100);
  BlockHasher at_once(16), step_by_step(16);
  at_once.Extend(tokens);
  for (size_t count = 0; count <= tokens.size(); ++count) {
    step_by_step.Extend(std::span(tokens).first(count));
  }
  EXPECT_EQ(at_once.hashes(), step_by_step.hashes());
  EXPECT_EQ(at_once.hashes().size(), 6u);
}

TEST(BlockHasher, StartsAtTheRoot) {
  const std::vector<uint32_t> tokens = Counting(16);
  const BlockHasher hasher(16);
  EXPECT_EQ(hasher.HashAfter(0, tokens), HashBlock(RootHash(), tokens));
  EXPECT_TRUE(hasher.hashes().empty());
}

TEST(BlockHasher, ATailOfAFullBlockIsThatBlock) {
  const std::vector<uint32_t> tokens = Counting(32);
  BlockHasher hasher(16);
  hasher.Extend(std::span(tokens).first(16));
  const BlockHash partial_block = hasher.HashAfter(1, std::span(tokens).last(16));
  hasher.Extend(tokens);
  EXPECT_EQ(hasher.hashes()[1], partial_block);
}

TEST(BlockHash, DependsOnParentTokensAndKeys) {
  const std::vector<uint32_t> tokens = Counting(16);
  const BlockHash hash = HashBlock(RootHash(), tokens);
  EXPECT_NE(hash, HashBlock(RootHash("other"), tokens));
  EXPECT_NE(hash, HashBlock(RootHash(), std::span(tokens).first(15)));
  const ExtraKeys keys = {ExtraKey::Text("lora")};
  EXPECT_NE(hash, HashBlock(RootHash(), tokens, keys));
}

TEST(BlockHash, TextsThatAreNotUtf8AreHashedAndStayApart) {
  const std::vector<uint32_t> tokens = Counting(16);
  const ExtraKeys broken = {ExtraKey::Text("\xed\xa0\x80")}, other = {ExtraKey::Text("\xff")};
  EXPECT_NE(HashBlock(RootHash(), tokens, broken), HashBlock(RootHash(), tokens, other));
}

}  // namespace
}  // namespace kvtier
