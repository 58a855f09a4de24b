// SPDX-License-Identifier: Apache-2.0
#include "protocol/block_hash.h"

#include <utility>

#include "base/digest.h"
#include "base/result.h"
#include "protocol/cbor_writer.h"

namespace kvtier {
namespace {

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

}  // namespace

ExtraKeys PromptIdentity::KeysOf(uint64_t first_token, uint64_t end_token) const {
  ExtraKeys keys;
  if (!lora_name.empty()) keys.push_back(ExtraKey::Text(lora_name));
  for (const MediaItem& item : media) {
    if (item.first_token >= end_token || item.first_token + item.tokens <= first_token) continue;
    const auto offset = static_cast<int64_t>(item.first_token - first_token);
    keys.push_back(ExtraKey::Tuple({ExtraKey::Text(item.content_hash), ExtraKey::Integer(offset)}));
  }
  if (first_token == 0 && !cache_salt.empty()) keys.push_back(ExtraKey::Text(cache_salt));
  return keys;
}

BlockHash RootHash(std::string_view seed) {
  CborWriter writer;
  writer.WriteText(seed);
  return Sha256(writer.data());
}

BlockHash HashBlock(const BlockHash& parent, std::span<const uint32_t> tokens,
                    std::span<const ExtraKey> extra_keys) {
  CborWriter writer;
  writer.WriteArray(3);
  writer.WriteBytes(std::as_bytes(std::span(parent.bytes)));
  writer.WriteArray(tokens.size());
  for (const uint32_t token : tokens) writer.WriteUnsigned(token);
  if (extra_keys.empty()) {
    writer.WriteNull();
  } else {
    WriteKeys(extra_keys, &writer);
  }
  return Sha256(writer.data());
}

BlockHasher::BlockHasher(uint32_t block_tokens, const BlockHash& root, PromptIdentity identity)
    : block_tokens_(block_tokens), root_(root), identity_(std::move(identity)) {
  KVT_CHECK(block_tokens > 0);
}

void BlockHasher::Extend(std::span<const uint32_t> tokens) {
  while (tokens.size() / block_tokens_ > hashes_.size()) {
    hashes_.push_back(HashNext(tokens.subspan(hashes_.size() * block_tokens_, block_tokens_)));
  }
}

BlockHash BlockHasher::HashPartialBlock(std::span<const uint32_t> tokens) const {
  return HashNext(tokens);
}

BlockHash BlockHasher::HashNext(std::span<const uint32_t> tokens) const {
  if (identity_.empty()) return HashBlock(last(), tokens);
  const uint64_t first_token = hashes_.size() * uint64_t{block_tokens_};
  return HashBlock(last(), tokens, identity_.KeysOf(first_token, first_token + tokens.size()));
}

}  // namespace kvtier
