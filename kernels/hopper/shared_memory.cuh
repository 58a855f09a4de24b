// SPDX-License-Identifier: Apache-2.0
// Shared memory and what moves in and out of it without the copy engine: plain and matrix loads and
// stores, asynchronous copies of 16 or 4 bytes (cp.async), and how long L2 keeps what they read.
//
// Addresses are 32-bit offsets within shared memory (SharedAddress), as PTX wants them; all
// addresses of 16-byte accesses are aligned to 16 bytes.
#pragma once

#include <cstdint>

namespace kvtier::kernels {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint4 LoadShared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ uint2 LoadSharedPair(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}

__device__ __forceinline__ uint32_t LoadSharedWord(uint32_t from) {
  uint32_t v = 0;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}

__device__ __forceinline__ float LoadSharedFloat(uint32_t from) {
  float v = 0;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}

__device__ __forceinline__ void StoreShared(uint32_t to, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

__device__ __forceinline__ void StoreShared(uint32_t to, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void StoreShared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// ldmatrix: four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix
// l / 8; thread t receives the elements 2 * (t % 4) and the next of row t / 4 of each.
__device__ __forceinline__ void LoadMatrices(uint32_t row, uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

// Likewise, each matrix transposed on its way to registers.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t row, uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

// stmatrix: the inverse of LoadMatrices.
__device__ __forceinline__ void StoreMatrices(uint32_t row, uint4 words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

// Orders this thread's ordinary writes to shared memory before later reads by tensor cores or the
// copy engine, which see shared memory through another proxy. Every thread that wrote must call it,
// before it arrives at the barrier that tells of the write.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// How long L2 should keep what a copy brings: data that is read once in a step gives way first.
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t EvictNormal() {
  uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void PrefetchL2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Queues a copy of 16 bytes from global to shared memory that passes no registers. Not `valid`:
// writes zeros and reads nothing, though `from` must still be an address.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool valid,
                                            uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(from), "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
}

// Likewise 4 bytes.
__device__ __forceinline__ void CopyAsync4(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

// Closes a group of this thread's copies.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's newest groups are in flight. Copies of the warp's
// other threads can be read after a __syncwarp.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for all of this thread's copies, whether or not their group was closed.
__device__ __forceinline__ void WaitForAllCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace kvtier::kernels
