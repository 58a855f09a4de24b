// SPDX-License-Identifier: Apache-2.0
// Every block the cache knows, in whatever tier: key to entry.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "tiers/directory/block_lifecycle.h"
#include "tiers/policy/eviction_policy.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// Names a block's entry for longer than the entry may live: a row is given to another block when
// its own has been forgotten, and the row's generation tells the two apart.
struct EntryRef {
  EntryIndex row = kNoEntry;
  uint32_t generation = 0;
  friend auto operator<=>(const EntryRef&, const EntryRef&) = default;
};

// Event loop only.
class Directory {
 public:
  Directory();
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // kNoEntry if the block is not known.
  [[nodiscard]] EntryIndex Find(const BlockKey& key) const;
  // The same, looking first behind `before`, where the next block of a sequence mostly stands: rows
  // are given in the order of commits. kNoEntry as `before` is no hint.
  [[nodiscard]] EntryIndex FindAfter(EntryIndex before, const BlockKey& key) const;
  // REQUIRES: Find(key) == kNoEntry.
  EntryIndex Insert(const BlockKey& key);
  // The index may be given to another block from now on. REQUIRES: the entry lives.
  void Erase(EntryIndex entry);

  // REQUIRES: the entry lives.
  [[nodiscard]] EntryRef RefOf(EntryIndex entry) const;
  // The entry, if it has lived since RefOf; else kNoEntry, as for EntryRef{}.
  [[nodiscard]] EntryIndex Resolve(EntryRef ref) const;

  [[nodiscard]] BlockEntry& operator[](EntryIndex entry);
  [[nodiscard]] const BlockEntry& operator[](EntryIndex entry) const;

  [[nodiscard]] size_t size() const;
  // One past the highest index in use; for walks over everything (check `Live`).
  [[nodiscard]] uint32_t end() const;
  [[nodiscard]] bool Live(EntryIndex entry) const;
  [[nodiscard]] size_t memory_bytes() const;

 private:
  struct Table;
  std::unique_ptr<Table> table_;
};

}  // namespace kvtier
