// SPDX-License-Identifier: Apache-2.0
// An array that grows without moving its elements and without the slack of a doubling vector.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace kvtier {

// Elements are value-initialised page by page on first touch; pages never touched cost one pointer.
template <typename T, size_t kPageElements = 16384>
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

}  // namespace kvtier
