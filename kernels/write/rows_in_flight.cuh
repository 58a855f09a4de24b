// SPDX-License-Identifier: Apache-2.0
// A run's chunks on their way from memory, a pair of rows after the other: in registers, all of
// them, or in places of the thread's own in shared memory, where it takes them up itself and whence
// it asks for more.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/hopper/shared_memory.cuh"
#include "kernels/write/row_chunks.cuh"

namespace kvtier::kernels {

// Once, streamed past L1, and issued where it is written.
__device__ __forceinline__ uint4 LoadStreamed(const void* address) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

// From a pair's rows to the next pair's, in bytes.
struct Steps {
  int64_t first;
  int64_t second;
};

// kStages: pairs under way; 0: all kPairs, in registers.
template <int kPairs, int kStages, int kThreads>
class RowsInFlight {
 public:
  static constexpr bool kInRegisters = kStages == 0;
  static constexpr int kAtOnce = kInRegisters ? kPairs : kStages;
  static constexpr int kPitch = kThreads * 16;
  static constexpr int kSharedBytes = kStages * 4 * kPitch;
  static_assert(kAtOnce <= kPairs);

  // Holds `rows` rows. `first` and `second`: a thread's first chunks of the first pair.
  __device__ RowsInFlight(const void* shared, uint32_t rows, const char* first, const char* second,
                          const Chunks& first_chunks, const Chunks& second_chunks)
      : own_(SharedAddress(shared) + threadIdx.x * 16),
        left_(rows),
        from_{first, second},
        apart_{first_chunks.apart, second_chunks.apart} {}

  // The compiler computes addresses no later than here.
  __device__ __forceinline__ void SettleAddresses() {
    asm volatile("" : "+l"(from_[0]), "+l"(from_[1]));
  }

  // Asks for the next pair, into `place`, or for what there is of it.
  __device__ __forceinline__ void Queue(int place, const Steps& steps) {
#pragma unroll
    for (uint32_t row = 0; row < 2; ++row) {
      if (row < left_) QueueRow(2 * place + row, row);
    }
    left_ -= left_ < 2 ? left_ : 2;
    from_[0] += steps.first;
    from_[1] += steps.second;
    if constexpr (!kInRegisters) CommitCopies();
  }

  // Likewise, in the place of a pair that has been taken.
  __device__ __forceinline__ void Refill(int place, const Steps& steps) {
    if constexpr (kAtOnce < kPairs) {
      Queue(place, steps);
    } else if constexpr (!kInRegisters) {
      CommitCopies();  // there is nothing more; WaitForOldest counts on it
    }
  }

  // Returns when the oldest has come of the kAtOnce pairs that were asked for last.
  __device__ __forceinline__ void WaitForOldest() const {
    if constexpr (!kInRegisters) WaitForCopies<kAtOnce - 1>();
  }

  __device__ __forceinline__ Held Take(int place, int row) const {
    if constexpr (kInRegisters) {
      return held_[2 * place + row];
    } else {
      const uint32_t at = own_ + (2 * place + row) * 2 * kPitch;
      return {LoadShared(at), LoadShared(at + kPitch)};
    }
  }

 private:
  __device__ __forceinline__ void QueueRow(int at, int row) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const char* const chunk = from_[row] + (c == 0 ? 0 : apart_[row]);
      if constexpr (kInRegisters) {
        held_[at].chunk[c] = LoadStreamed(chunk);
      } else {
        CopyAsync16(own_ + (2 * at + c) * kPitch, chunk, true);
      }
    }
  }

  uint32_t own_;
  uint32_t left_;  // rows not asked for yet
  const char* from_[2];
  uint32_t apart_[2];
  Held held_[kInRegisters ? 2 * kPairs : 1];
};

}  // namespace kvtier::kernels
