// SPDX-License-Identifier: Apache-2.0
// Orders of blocks by age, and the policy that decides in which order a tier evicts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// An array that grows without moving its elements and without the slack of a doubling vector.
// Elements are value-initialised page by page on first touch; pages never touched cost one pointer.
// A page is made in one event, in which the system gives it memory: the largest elements, of 88
// bytes, make one of 352 KiB.
template <typename T, size_t kPageElements = 4096>
class PagedArray {
 public:
  // The element at `index`; creates its page if need be.
  T& At(size_t index) {
    const size_t page = index / kPageElements;
    if (page >= pages_.size()) pages_.resize(page + 1);
    if (!pages_[page]) pages_[page] = std::make_unique<Page>();
    return (*pages_[page])[index % kPageElements];
  }

  // REQUIRES: At(index) was called before.
  T& operator[](size_t index) { return (*pages_[index / kPageElements])[index % kPageElements]; }
  const T& operator[](size_t index) const {
    return (*pages_[index / kPageElements])[index % kPageElements];
  }

  // The element, or null if its page was never touched.
  [[nodiscard]] const T* Find(size_t index) const {
    const size_t page = index / kPageElements;
    if (page >= pages_.size() || !pages_[page]) return nullptr;
    return &(*pages_[page])[index % kPageElements];
  }

  [[nodiscard]] size_t memory_bytes() const {
    size_t pages = 0;
    for (const auto& page : pages_) pages += page != nullptr;
    return pages * sizeof(Page) + pages_.capacity() * sizeof(pages_[0]);
  }

 private:
  using Page = std::array<T, kPageElements>;
  std::vector<std::unique_ptr<Page>> pages_;
};

// A doubly linked list of directory entries, cold end first. Links live in the list, not in the
// entry, so that an entry can be in several lists and pays only for those it was ever in. Lists
// that share their links cost an entry no more than one list does; it can be in one of them only.
// Event loop only.
class EntryList {
 public:
  EntryList() : links_(std::make_shared<Links>()) {}
  EntryList(EntryList&&) = default;
  EntryList& operator=(EntryList&&) = default;
  // A list that shares the links of `other`.
  [[nodiscard]] static EntryList SharingLinksOf(const EntryList& other) {
    return EntryList(other.links_);
  }

  // For lists that share their links: whether one of them contains the entry.
  [[nodiscard]] bool Contains(EntryIndex entry) const {
    const Link* link = links_->Find(entry.value);
    return link != nullptr && link->hotter != kUnlinked;
  }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  // kNoEntry when empty.
  [[nodiscard]] EntryIndex coldest() const { return coldest_; }
  // The next hotter entry, or kNoEntry. REQUIRES: Contains(entry).
  [[nodiscard]] EntryIndex Hotter(EntryIndex entry) const { return (*links_)[entry.value].hotter; }

  // REQUIRES: !Contains(entry).
  void PushHot(EntryIndex entry);
  // Right behind `hotter`, as the next to be colder; at the hot end for kNoEntry. REQUIRES:
  // !Contains(entry), and Contains(hotter) unless it is kNoEntry.
  void PushColderThan(EntryIndex hotter, EntryIndex entry);
  // REQUIRES: !Contains(entry).
  void PushCold(EntryIndex entry) { PushColderThan(coldest_, entry); }
  // Does nothing if the entry is not in the list. REQUIRES: in none that shares its links either.
  void Remove(EntryIndex entry);
  // Moves to (or inserts at) the hot end.
  void Touch(EntryIndex entry) {
    Remove(entry);
    PushHot(entry);
  }

  // For lists that share their links: the memory of all.
  [[nodiscard]] size_t memory_bytes() const { return links_->memory_bytes(); }

 private:
  // Stands in `hotter` of an entry that is not in the list.
  static constexpr EntryIndex kUnlinked{UINT32_MAX - 1};
  struct Link {
    EntryIndex colder = kNoEntry;
    EntryIndex hotter = kUnlinked;
  };

  using Links = PagedArray<Link>;
  explicit EntryList(std::shared_ptr<Links> links) : links_(std::move(links)) {}

  std::shared_ptr<Links> links_;
  EntryIndex coldest_ = kNoEntry;
  EntryIndex hottest_ = kNoEntry;
  size_t size_ = 0;
};

// The facts on which a policy may base its choice.
struct BlockFacts {
  EntryIndex parent = kNoEntry;  // the block before it in its sequence, as far as it is known
  uint64_t hash = 0;             // names the block beyond the life of its entry
  uint32_t last_use_s = 0;       // on the age clock
  uint8_t uses = 0;              // since its bytes were computed or read from disk
  // It goes before all that do not, but not before a block that follows it.
  bool leaves_first = false;
};

// Holds the evictable blocks of one tier; there is one instance per tier, pool and tenant with
// quotas. Among blocks inserted by one release the deeper comes first (the caller inserts them in
// that order). Among blocks that leave first the one inserted first goes first. Event loop only.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // REQUIRES: not held.
  virtual void Insert(EntryIndex entry, const BlockFacts& facts) = 0;
  // As one that was used before all that are held. REQUIRES: not held.
  virtual void InsertCold(EntryIndex entry, const BlockFacts& facts) = 0;
  // The block was used while held. Inserts it if it is not held.
  virtual void Touch(EntryIndex entry, const BlockFacts& facts) = 0;
  // Does nothing if not held.
  virtual void Remove(EntryIndex entry) = 0;
  [[nodiscard]] virtual bool Contains(EntryIndex entry) const = 0;
  // The block to forget first, or kNoEntry.
  [[nodiscard]] virtual EntryIndex Victim() const = 0;
  [[nodiscard]] virtual size_t size() const = 0;
  [[nodiscard]] virtual size_t memory_bytes() const = 0;

  // Told besides to a policy that learns: a block was used just now, held or not; a request was
  // served.
  virtual void NoteUse(const BlockFacts& /*facts*/) {}
  virtual void NoteRequest() {}
};

[[nodiscard]] std::unique_ptr<EvictionPolicy> MakeLruPolicy();

}  // namespace kvtier
