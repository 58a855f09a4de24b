// SPDX-License-Identifier: Apache-2.0
#include "protocol/block_hash.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/result.h"
#include "protocol/cbor_writer.h"
#include "protocol/model_record.h"

namespace kvtier {
namespace {

// By HashRecipe.
constexpr std::array<std::string_view, 3> kRecipeNames = {"vllm-sha256-cbor/1",
                                                          "vllm-sha256-cbor/2", "sglang/1"};
static_assert(kRecipeNames[static_cast<size_t>(HashRecipe::kVllmSha256Cbor2)] ==
              kDefaultHashRecipe);

void WriteKeys(std::span<const ExtraKey> keys, CborWriter* writer);

struct KeyVisitor {
  CborWriter* writer;
  void operator()(const std::string& text) const { writer->WriteText(text); }
  void operator()(int64_t number) const { writer->WriteInteger(number); }
  void operator()(const std::vector<std::byte>& bytes) const { writer->WriteBytes(bytes); }
  void operator()(const ExtraKey::List& list) const { WriteKeys(list, writer); }
};

void WriteKeys(std::span<const ExtraKey> keys, CborWriter* writer) {
  writer->WriteArray(keys.size());
  for (const ExtraKey& key : keys) std::visit(KeyVisitor{writer}, key.value);
}

void WriteKeysOrNull(std::span<const ExtraKey> keys, CborWriter* writer) {
  if (keys.empty()) return writer->WriteNull();
  WriteKeys(keys, writer);
}

// The head of a block: [parent, [token, ...], and the keys are still to be written.
void WriteBlock(const BlockHash& parent, std::span<const uint32_t> tokens, CborWriter* writer) {
  writer->WriteArray(3);
  writer->WriteBytes(std::as_bytes(std::span(parent.bytes)));
  writer->WriteArray(tokens.size());
  for (const uint32_t token : tokens) writer->WriteUnsigned(token);
}

// Whether vLLM hashes this text.
bool IsGiven(const std::optional<std::string>& text) { return text && !text->empty(); }

// SGLang's storage_namespace_seed.
std::optional<BlockHash> SglangNamespace(const PromptIdentity& identity) {
  if (!identity.extra_key && !identity.cache_salt) return std::nullopt;
  constexpr std::string_view kDomain = "sglang-cache-namespace-v1";
  ByteWriter writer;
  writer.WriteBytes(std::as_bytes(std::span(kDomain)));
  for (const std::optional<std::string>* part : {&identity.extra_key, &identity.cache_salt}) {
    writer.Write(static_cast<uint8_t>(part->has_value()));
    if (!*part) continue;
    writer.Write(uint64_t{(*part)->size()});
    writer.WriteBytes(std::as_bytes(std::span(**part)));
  }
  return Sha256(writer.data());
}

}  // namespace

std::string_view HashRecipeName(HashRecipe recipe) {
  return kRecipeNames[static_cast<size_t>(recipe)];
}

Result<HashRecipe> ParseHashRecipe(std::string_view name) {
  const auto found = std::ranges::find(kRecipeNames, name);
  if (found != kRecipeNames.end()) return static_cast<HashRecipe>(found - kRecipeNames.begin());
  return MakeError(ErrorCode::kInvalidArgument, "bad_recipe",
                   fmt::format("{}, not {}", name, fmt::join(kRecipeNames, ", ")));
}

Status PromptIdentity::CheckFor(HashRecipe recipe) const {
  const auto refuse = [&](std::string_view field, bool given) -> Status {
    if (!given) return {};
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("bad_{}", field),
                     fmt::format("{} is not hashed by {}", field, HashRecipeName(recipe)));
  };
  if (recipe != HashRecipe::kSglang1) return refuse("extra_key", extra_key.has_value());
  KVT_RETURN_IF_ERROR(refuse("seed", seed.has_value()));
  KVT_RETURN_IF_ERROR(refuse("lora", lora_name.has_value()));
  KVT_RETURN_IF_ERROR(refuse("lora_path", lora_path.has_value()));
  KVT_RETURN_IF_ERROR(refuse("items", !media.empty()));
  return refuse("prompt_embeds", !prompt_embeds.empty());
}

BlockHash RootHash(std::string_view seed) {
  CborWriter writer;
  writer.WriteText(seed);
  return Sha256(writer.data());
}

BlockHash HashBlock(const BlockHash& parent, std::span<const uint32_t> tokens,
                    std::span<const ExtraKey> extra_keys) {
  CborWriter writer;
  WriteBlock(parent, tokens, &writer);
  WriteKeysOrNull(extra_keys, &writer);
  return Sha256(writer.data());
}

BlockHasher::BlockHasher(uint32_t block_tokens, HashRecipe recipe, PromptIdentity identity,
                         uint32_t lookahead_tokens)
    : block_tokens_(block_tokens),
      lookahead_tokens_(lookahead_tokens),
      recipe_(recipe),
      identity_(std::move(identity)),
      has_keys_(IsGiven(identity_.lora_name) || IsGiven(identity_.cache_salt) ||
                !identity_.media.empty() || !identity_.prompt_embeds.empty()) {
  KVT_CHECK(block_tokens > 0);
  KVT_CHECK(recipe != HashRecipe::kSglang1 || lookahead_tokens == 0);
  root_ = recipe == HashRecipe::kSglang1
              ? SglangNamespace(identity_)
              : RootHash(identity_.seed ? std::string_view(*identity_.seed) : kDefaultHashSeed);
}

void BlockHasher::Extend(std::span<const uint32_t> tokens) {
  while (true) {
    const size_t block = hashes_.size();
    const size_t end = (block + 1) * block_tokens_;
    if (tokens.size() < end + lookahead_tokens_) return;
    const auto own = tokens.subspan(end - block_tokens_, block_tokens_);
    hashes_.push_back(recipe_ == HashRecipe::kSglang1
                          ? HashSglang(block, own)
                          : HashVllm(block, own, tokens.subspan(end, lookahead_tokens_)));
  }
}

BlockHash BlockHasher::HashAfter(size_t full_blocks, std::span<const uint32_t> tokens) const {
  KVT_CHECK(lookahead_tokens_ == 0);
  if (recipe_ == HashRecipe::kSglang1) return HashSglang(full_blocks, tokens);
  return HashVllm(full_blocks, tokens, {});
}

std::optional<BlockHash> BlockHasher::ParentOf(size_t block) const {
  KVT_CHECK(block <= hashes_.size());
  return block == 0 ? root_ : hashes_[block - 1];
}

BlockHash BlockHasher::HashVllm(size_t block, std::span<const uint32_t> tokens,
                                std::span<const uint32_t> lookahead) const {
  ExtraKeys keys;
  if (has_keys_) keys = KeysOf(block, tokens.size() + lookahead.size());
  CborWriter writer;
  WriteBlock(*ParentOf(block), tokens, &writer);
  if (lookahead.empty()) {
    WriteKeysOrNull(keys, &writer);
  } else {
    writer.WriteArray(1 + lookahead.size());
    WriteKeysOrNull(keys, &writer);
    for (const uint32_t token : lookahead) writer.WriteUnsigned(token);
  }
  return Sha256(writer.data());
}

BlockHash BlockHasher::HashSglang(size_t block, std::span<const uint32_t> tokens) const {
  ByteWriter writer;
  if (const std::optional<BlockHash> parent = ParentOf(block)) writer.WriteDigest(*parent);
  writer.WriteBytes(std::as_bytes(tokens));
  return Sha256(writer.data());
}

ExtraKeys BlockHasher::KeysOf(size_t block, size_t tokens) const {
  const bool tagged = recipe_ == HashRecipe::kVllmSha256Cbor2;
  const uint64_t first_token = block * uint64_t{block_tokens_};
  const uint64_t end_token = first_token + tokens;
  ExtraKeys keys;
  const auto add = [&](std::string_view tag, ExtraKey key) {
    keys.push_back(tagged ? ExtraKey::Tuple({ExtraKey::Text(tag), std::move(key)})
                          : std::move(key));
  };
  if (IsGiven(identity_.lora_name)) {
    const ExtraKey name = ExtraKey::Text(*identity_.lora_name);
    const ExtraKey path = ExtraKey::Text(identity_.lora_path.value_or(""));
    keys.push_back(tagged ? ExtraKey::Tuple({ExtraKey::Text("lora"), name, path}) : name);
  }
  for (const MediaItem& item : identity_.media) {
    if (item.first_token >= end_token || item.first_token + item.tokens <= first_token) continue;
    const auto offset = static_cast<int64_t>(item.first_token - first_token);
    ExtraKey::List parts = {ExtraKey::Text(item.content_hash), ExtraKey::Integer(offset)};
    if (tagged) parts.insert(parts.begin(), ExtraKey::Text("mm"));
    keys.push_back(ExtraKey::Tuple(std::move(parts)));
  }
  if (block == 0 && IsGiven(identity_.cache_salt)) {
    add("cache_salt", ExtraKey::Text(*identity_.cache_salt));
  }
  if (block < identity_.prompt_embeds.size()) {
    const BlockHash& digest = identity_.prompt_embeds[block];
    add("prompt_embeds", ExtraKey::Bytes(std::as_bytes(std::span(digest.bytes))));
  }
  return keys;
}

}  // namespace kvtier
