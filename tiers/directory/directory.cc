// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/directory.h"

#include <boost/unordered/unordered_flat_set.hpp>
#include <vector>

#include "base/result.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {

// The set holds 4-byte indices and hashes through the array: 1/8 of what keys by value would take.
struct Directory::Table {
  struct Hasher {
    using is_transparent = void;
    using is_avalanching = void;
    const Table* table;
    size_t operator()(EntryIndex index) const {
      const BlockEntry& entry = table->entries[index.value];
      return table->hash({entry.namespace_id, entry.hash});
    }
    size_t operator()(const BlockKey& key) const { return table->hash(key); }
  };
  struct Equal {
    using is_transparent = void;
    const Table* table;
    bool operator()(EntryIndex a, EntryIndex b) const { return a == b; }
    bool operator()(const BlockKey& key, EntryIndex index) const {
      const BlockEntry& entry = table->entries[index.value];
      return entry.hash == key.hash && entry.namespace_id == key.namespace_id;
    }
    bool operator()(EntryIndex index, const BlockKey& key) const { return (*this)(key, index); }
  };

  const BlockKeyHash hash;
  PagedArray<BlockEntry> entries;
  // How often each row has been freed, in pages that are allocated when one of their rows is.
  PagedArray<uint32_t> generations;
  std::vector<uint32_t> free;
  uint32_t end = 0;
  boost::unordered_flat_set<EntryIndex, Hasher, Equal> set{0, Hasher{this}, Equal{this}};
};

// A free row is one whose space is this.
constexpr NamespaceId kFreeRow{UINT32_MAX};

Directory::Directory() : table_(std::make_unique<Table>()) {}
Directory::~Directory() = default;

EntryIndex Directory::Find(const BlockKey& key) const {
  const auto found = table_->set.find(key);
  return found == table_->set.end() ? kNoEntry : *found;
}

EntryIndex Directory::FindAfter(EntryIndex before, const BlockKey& key) const {
  const uint32_t row = before.value + 1;  // 0 for none, which is as good a guess as any
  if (row < table_->end) {
    // A free row is of no space that is asked for.
    const BlockEntry& entry = table_->entries[row];
    if (entry.hash == key.hash && entry.namespace_id == key.namespace_id) return EntryIndex(row);
  }
  return Find(key);
}

EntryIndex Directory::Insert(const BlockKey& key) {
  Table& table = *table_;
  uint32_t row;
  if (table.free.empty()) {
    row = table.end++;
  } else {
    row = table.free.back();
    table.free.pop_back();
  }
  BlockEntry& entry = table.entries.At(row);
  entry = BlockEntry{};
  entry.hash = key.hash;
  entry.namespace_id = key.namespace_id;
  const bool inserted = table.set.insert(EntryIndex(row)).second;
  KVT_CHECK(inserted);
  return EntryIndex(row);
}

void Directory::Erase(EntryIndex entry) {
  const size_t erased = table_->set.erase(entry);
  KVT_CHECK(erased == 1);
  table_->entries[entry.value].namespace_id = kFreeRow;
  table_->free.push_back(entry.value);
  ++table_->generations.At(entry.value);
}

EntryRef Directory::RefOf(EntryIndex entry) const {
  const uint32_t* const generation = table_->generations.Find(entry.value);
  return {entry, generation == nullptr ? 0 : *generation};
}

EntryIndex Directory::Resolve(EntryRef ref) const {
  return ref.row != kNoEntry && RefOf(ref.row) == ref ? ref.row : kNoEntry;
}

void Directory::Reserve(size_t entries) { table_->set.reserve(entries); }

BlockEntry& Directory::operator[](EntryIndex entry) { return table_->entries[entry.value]; }
const BlockEntry& Directory::operator[](EntryIndex entry) const {
  return table_->entries[entry.value];
}

size_t Directory::size() const { return table_->set.size(); }
uint32_t Directory::end() const { return table_->end; }
bool Directory::Live(EntryIndex entry) const {
  return entry.value < table_->end && table_->entries[entry.value].namespace_id != kFreeRow;
}

size_t Directory::memory_bytes() const {
  // The flat set stores 15 elements a group of 16 bytes of metadata.
  const size_t buckets = table_->set.bucket_count();
  return table_->entries.memory_bytes() + table_->generations.memory_bytes() +
         table_->free.capacity() * sizeof(uint32_t) + buckets * (sizeof(EntryIndex) + 1) +
         buckets / 15;
}

}  // namespace kvtier
