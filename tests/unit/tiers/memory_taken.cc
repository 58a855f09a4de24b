// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tiers/memory_taken.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> all_bytes = 0;
std::atomic<size_t> largest_piece = 0;

void* Take(size_t bytes, size_t alignment) {
  all_bytes += bytes;
  size_t known = largest_piece;
  while (known < bytes && !largest_piece.compare_exchange_weak(known, bytes)) {
  }
  void* const memory =
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

kvtier::MemoryTaken kvtier::TakeMemoryTaken() {
  return {all_bytes.exchange(0), largest_piece.exchange(0)};
}

void* operator new(size_t bytes) { return Take(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Take(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
