// SPDX-License-Identifier: Apache-2.0
// Memory fit for direct I/O.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/check.h"

namespace kvtier {

// Zeroed, aligned to 4 KiB. Move-only.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) : bytes_(bytes) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
    KVT_CHECK(data_ != nullptr);
    std::fill_n(data_.get(), bytes, std::byte{0});
  }

  [[nodiscard]] std::span<std::byte> span() { return {data_.get(), bytes_}; }
  [[nodiscard]] std::span<const std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace kvtier
