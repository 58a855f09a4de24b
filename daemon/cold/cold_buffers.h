// SPDX-License-Identifier: Apache-2.0
// Memory that cold stores' answers are received into, used again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tiers/cold/cold_store.h"

namespace kvtier {

// A block's bytes come in fresh memory at the price of a page fault for each 4 KiB, which costs
// more than to copy them. So the memory into which a block was received serves the next one. Take
// belongs to one thread; a buffer may be given up on any, also after the pool's end.
class ColdBuffers {
 public:
  using Buffer = ColdObject;

  // Keeps so many bytes of waiting buffers at most.
  explicit ColdBuffers(uint64_t max_kept_bytes);

  // A buffer of so many bytes, of which nothing may be assumed, and which are not touched here.
  [[nodiscard]] std::shared_ptr<Buffer> Take(size_t bytes);
  [[nodiscard]] uint64_t kept_bytes() const;

 private:
  struct Shelf;
  const std::shared_ptr<Shelf> shelf_;
};

}  // namespace kvtier
