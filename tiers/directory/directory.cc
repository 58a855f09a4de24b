// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/directory.h"

#include "base/result.h"
#include "tiers/directory/row_set.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {

struct Directory::Table {
  [[nodiscard]] uint64_t HashOf(EntryIndex row) const {
    const BlockEntry& entry = entries[row.value];
    return hash({entry.namespace_id, entry.hash});
  }

  const BlockKeyHash hash;
  PagedArray<BlockEntry> entries;
  // How often each row has been freed, in pages that are allocated when one of their rows is.
  PagedArray<uint32_t> generations;
  PagedArray<uint32_t> free;  // rows, the last to be used next
  uint32_t free_count = 0;
  uint32_t end = 0;
  RowSet rows;
};

// A free row is one whose space is this.
constexpr NamespaceId kFreeRow{UINT32_MAX};

Directory::Directory() : table_(std::make_unique<Table>()) {}
Directory::~Directory() = default;

EntryIndex Directory::Find(const BlockKey& key) const {
  return table_->rows.Find(table_->hash(key), [&](EntryIndex row) {
    const BlockEntry& entry = table_->entries[row.value];
    return entry.hash == key.hash && entry.namespace_id == key.namespace_id;
  });
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
  if (table.free_count == 0) {
    row = table.end++;
  } else {
    row = table.free[--table.free_count];
  }
  BlockEntry& entry = table.entries.At(row);
  entry = BlockEntry{};
  entry.hash = key.hash;
  entry.namespace_id = key.namespace_id;
  table.rows.Insert(table.hash(key), EntryIndex(row));
  return EntryIndex(row);
}

void Directory::Erase(EntryIndex entry) {
  const bool erased = table_->rows.Erase(table_->HashOf(entry), entry);
  KVT_CHECK(erased);
  table_->entries[entry.value].namespace_id = kFreeRow;
  table_->free.At(table_->free_count++) = entry.value;
  ++table_->generations.At(entry.value);
}

EntryRef Directory::RefOf(EntryIndex entry) const {
  const uint32_t* const generation = table_->generations.Find(entry.value);
  return {entry, generation == nullptr ? 0 : *generation};
}

EntryIndex Directory::Resolve(EntryRef ref) const {
  return ref.row != kNoEntry && RefOf(ref.row) == ref ? ref.row : kNoEntry;
}

BlockEntry& Directory::operator[](EntryIndex entry) { return table_->entries[entry.value]; }
const BlockEntry& Directory::operator[](EntryIndex entry) const {
  return table_->entries[entry.value];
}

size_t Directory::size() const { return table_->rows.size(); }
uint32_t Directory::end() const { return table_->end; }
bool Directory::Live(EntryIndex entry) const {
  return entry.value < table_->end && table_->entries[entry.value].namespace_id != kFreeRow;
}

size_t Directory::memory_bytes() const {
  return table_->entries.memory_bytes() + table_->generations.memory_bytes() +
         table_->free.memory_bytes() + table_->rows.memory_bytes();
}

}  // namespace kvtier
