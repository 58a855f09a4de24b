// SPDX-License-Identifier: Apache-2.0
#include "tiers/policy/infinite_cache.h"

#include <array>
#include <boost/unordered/unordered_flat_set.hpp>
#include <cstring>
#include <random>

namespace kvtier {
namespace {

// Keyed with secrets of this process: clients choose the hashes, and must not choose the sample.
struct Secrets {
  uint64_t low, high;
};

Secrets MakeSecrets() {
  std::random_device random;
  const auto word = [&random] { return uint64_t{random()} << 32 | random() | 1; };
  return {word(), word()};
}

uint64_t Fold(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t HashOf(const Secrets& secrets, NamespaceId namespace_id, const BlockHash& hash) {
  std::array<uint64_t, 2> words;
  std::memcpy(words.data(), hash.bytes.data(), sizeof(words));
  return Fold(words[0] ^ secrets.low ^ namespace_id.value, words[1] ^ secrets.high);
}

struct Identity {
  using is_avalanching = void;
  // The low bits are zero in all of a sample.
  size_t operator()(uint64_t hash) const { return hash >> 32 | hash << 32; }
};

}  // namespace

struct InfiniteCache::Table {
  const Secrets secrets = MakeSecrets();
  boost::unordered_flat_set<uint64_t, Identity> keys;
};

InfiniteCache::InfiniteCache(size_t max_sampled_keys)
    : table_(std::make_unique<Table>()), max_sampled_keys_(max_sampled_keys) {}
InfiniteCache::~InfiniteCache() = default;

void InfiniteCache::Ask(NamespaceId namespace_id, std::span<const BlockHash> hashes) {
  const uint64_t weight = uint64_t{1} << sampling_shift_;
  for (const BlockHash& block : hashes) {
    const uint64_t hash = HashOf(table_->secrets, namespace_id, block);
    if ((hash & mask_) != 0) continue;
    if (!table_->keys.contains(hash)) misses_ += weight;
  }
}

void InfiniteCache::Store(NamespaceId namespace_id, const BlockHash& block) {
  const uint64_t hash = HashOf(table_->secrets, namespace_id, block);
  if ((hash & mask_) != 0) return;
  table_->keys.insert(hash);
  while (table_->keys.size() > max_sampled_keys_) HalveSample();
}

void InfiniteCache::HalveSample() {
  ++sampling_shift_;
  mask_ = (uint64_t{1} << sampling_shift_) - 1;
  boost::unordered::erase_if(table_->keys, [this](uint64_t hash) { return (hash & mask_) != 0; });
}

}  // namespace kvtier
