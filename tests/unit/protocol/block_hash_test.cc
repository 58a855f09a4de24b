// SPDX-License-Identifier: Apache-2.0
#include "protocol/block_hash.h"

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
  if (object.contains("lora_name")) identity.lora_name = TextOf(object.at("lora_name"));
  if (object.contains("cache_salt")) identity.cache_salt = TextOf(object.at("cache_salt"));
  if (object.contains("media")) {
    for (const json::value& item : object.at("media").as_array()) {
      const json::array& fields = item.as_array();
      identity.media.push_back(
          {TextOf(fields[0]), fields[1].to_number<uint64_t>(), fields[2].to_number<uint64_t>()});
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
    BlockHasher hasher(block_tokens, RootHash(TextOf(one.at("seed"))),
                       IdentityOf(one.at("identity").as_object()));
    hasher.Extend(tokens);
    const json::array& hashes = one.at("block_hashes").as_array();
    const size_t full = tokens.size() / block_tokens;
    ASSERT_EQ(hasher.hashes().size(), full);
    for (size_t i = 0; i < full; ++i) {
      EXPECT_EQ(hasher.hashes()[i].Hex(), TextOf(hashes[i])) << TextOf(one.at("name"));
    }
    if (hashes.size() > full) {
      const std::span<const uint32_t> tail = BlockOf(tokens, block_tokens, full);
      EXPECT_EQ(hasher.HashPartialBlock(tail).Hex(), TextOf(hashes[full]))
          << TextOf(one.at("name"));
    }
    ++checked;
  }
  EXPECT_EQ(checked, 8u);
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
  const BlockHasher hasher(16);
  EXPECT_EQ(hasher.last(), RootHash());
  EXPECT_TRUE(hasher.hashes().empty());
}

TEST(BlockHasher, ATailOfAFullBlockIsThatBlock) {
  const std::vector<uint32_t> tokens = Counting(32);
  BlockHasher hasher(16);
  hasher.Extend(std::span(tokens).first(16));
  const BlockHash partial_block = hasher.HashPartialBlock(std::span(tokens).last(16));
  hasher.Extend(tokens);
  EXPECT_EQ(hasher.last(), partial_block);
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
