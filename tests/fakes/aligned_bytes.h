// SPDX-License-Identifier: Apache-2.0
// A fixed-size buffer aligned for direct I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "base/result.h"
#include "tiers/storage/block_file.h"

namespace kvtier {

class AlignedBytes {
 public:
  // Every byte is `fill`.
  AlignedBytes(uint64_t size, uint8_t fill) : size_(size) {
    const uint64_t rounded = (size / kIoAlignment + 1) * kIoAlignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kIoAlignment, rounded)));
    KVT_CHECK(data_ != nullptr);
    std::memset(data_.get(), fill, size);
  }

  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::span<std::byte> Slice(uint64_t offset, uint64_t bytes) const {
    KVT_CHECK(offset <= size_ && bytes <= size_ - offset);
    return {data_.get() + offset, bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  uint64_t size_;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace kvtier
