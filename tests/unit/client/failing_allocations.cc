// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/client/failing_allocations.h"

#include <cstdlib>
#include <new>

namespace {

// This thread's allocations count.
thread_local bool counts = false;
thread_local int allocations_left = 0;
thread_local bool has_failed = false;

void* Allocate(size_t bytes, size_t alignment) {
  if (counts && allocations_left-- == 0) {
    counts = false;
    has_failed = true;
    throw std::bad_alloc();
  }
  void* const memory =
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void kvtier::client::FailAfter(int allocations) {
  has_failed = false;
  allocations_left = allocations;
  counts = true;
}

bool kvtier::client::FailNoMore() {
  counts = false;
  return has_failed;
}

void* operator new(size_t bytes) { return Allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
