// SPDX-License-Identifier: Apache-2.0
// One tier of the LRU model: blocks in the order in which the tier forgets them.
#pragma once

#include <cstdint>
#include <iterator>
#include <list>
#include <unordered_map>

#include "base/digest.h"

namespace kvtier {

// The coldest blocks are marked as prepared; every prepared block is colder than every other. Among
// the others, those that leave first are colder than those that do not.
class LruTier {
 public:
  explicit LruTier(uint64_t capacity) : capacity_(capacity) {}
  LruTier(const LruTier&) = delete;
  LruTier& operator=(const LruTier&) = delete;

  [[nodiscard]] bool Contains(const BlockHash& hash) const { return places_.contains(hash); }
  [[nodiscard]] uint64_t size() const { return places_.size(); }
  [[nodiscard]] uint64_t capacity() const { return capacity_; }
  [[nodiscard]] uint64_t prepared() const { return prepared_; }
  // REQUIRES: size() > 0.
  [[nodiscard]] const BlockHash& coldest() const { return order_.front().hash; }

  // Adds the block, or moves it, unprepared: hotter than all that were placed at an earlier time.
  void Place(const BlockHash& hash, uint64_t time) {
    Remove(hash);
    auto hotter = order_.end();
    while (hotter != order_.begin() && std::prev(hotter)->time > time &&
           !std::prev(hotter)->leaves_first) {
      --hotter;
    }
    Insert(hotter, {hash, time, false, false});
  }
  // Adds the block, or moves it, unprepared: as the last of those that leave first.
  void PlaceToLeaveFirst(const BlockHash& hash) {
    Remove(hash);
    auto hotter = first_unprepared_;
    while (hotter != order_.end() && hotter->leaves_first) ++hotter;
    Insert(hotter, {hash, 0, false, true});
  }

  // Does nothing if the block is not there.
  void Remove(const BlockHash& hash) {
    const auto found = places_.find(hash);
    if (found == places_.end()) return;
    prepared_ -= found->second->prepared;
    if (found->second == first_unprepared_) ++first_unprepared_;
    order_.erase(found->second);
    places_.erase(found);
  }

  // The coldest block that is not prepared yet. REQUIRES: prepared() < size().
  [[nodiscard]] BlockHash NextToPrepare() const { return first_unprepared_->hash; }
  // Marks it.
  const BlockHash& PrepareNext() {
    const auto next = first_unprepared_++;
    next->prepared = true;
    ++prepared_;
    return next->hash;
  }

 private:
  struct Block {
    BlockHash hash;
    uint64_t time;
    bool prepared;
    bool leaves_first;
  };

  void Insert(std::list<Block>::iterator hotter, const Block& block) {
    const auto place = order_.insert(hotter, block);
    if (hotter == first_unprepared_) first_unprepared_ = place;
    places_[block.hash] = place;
  }

  uint64_t capacity_;
  uint64_t prepared_ = 0;
  std::list<Block> order_;  // coldest first
  std::list<Block>::iterator first_unprepared_ = order_.end();
  std::unordered_map<BlockHash, std::list<Block>::iterator> places_;
};

}  // namespace kvtier
