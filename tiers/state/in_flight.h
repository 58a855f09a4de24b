// SPDX-License-Identifier: Apache-2.0
// Counts of bytes on their way, which keep each kind of movement within its bound. A move-only
// value holds a part of a count and gives it back when it is destroyed, whichever way that comes
// about. The count must outlive its parts.
#pragma once

#include <cstdint>
#include <utility>

namespace kvtier {

// How much of one kind of movement runs at present.
struct InFlight {
  uint64_t bytes = 0;
  uint64_t items = 0;  // blocks, or pieces of blocks
};

// A part of an InFlight.
class InFlightBytes {
 public:
  InFlightBytes() = default;
  InFlightBytes(InFlight* total, uint64_t bytes, uint64_t items)
      : total_(total), bytes_(bytes), items_(items) {
    total_->bytes += bytes_;
    total_->items += items_;
  }
  InFlightBytes(InFlightBytes&& other) noexcept
      : total_(std::exchange(other.total_, nullptr)), bytes_(other.bytes_), items_(other.items_) {}
  // The bytes that this had count until `other` ends.
  InFlightBytes& operator=(InFlightBytes&& other) noexcept {
    std::swap(total_, other.total_);
    std::swap(bytes_, other.bytes_);
    std::swap(items_, other.items_);
    return *this;
  }
  ~InFlightBytes() {
    if (total_ == nullptr) return;
    total_->bytes -= bytes_;
    total_->items -= items_;
  }

 private:
  InFlight* total_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t items_ = 0;
};

}  // namespace kvtier
