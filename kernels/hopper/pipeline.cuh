// SPDX-License-Identifier: Apache-2.0
// Hopper's asynchronous machinery in thin wrappers: transaction barriers in shared memory, tensor
// copies, ordering between the two kinds of access to shared memory, named barriers, and the share
// of registers a warpgroup owns.
#pragma once

#include <cuda.h>

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

__device__ __forceinline__ void StoreShared(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

__device__ __forceinline__ void StoreShared(uint32_t to, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void StoreShared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Four matrices of 8 rows by 16 bytes; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void LoadMatrices(uint32_t row, uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

// The way back.
__device__ __forceinline__ void StoreMatrices(uint32_t row, uint4 words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

// A barrier that flips its phase when its arrivals are complete and its expected bytes have landed.
class TransactionBarrier {
 public:
  // How long a waiting thread may sleep before it looks again by itself.
  static constexpr uint32_t kSleepNanoseconds = 10'000'000;

  __device__ void Init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals));
  }
  __device__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  // Arrives, and makes the phase wait for so many bytes of tensor copies.
  __device__ void ArriveExpecting(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }
  // Returns once the phase of this parity is over.
  __device__ void Wait(uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
        "@!done bra again;\n}\n" ::"r"(address()),
        "r"(parity), "r"(kSleepNanoseconds)
        : "memory");
  }
  // Whether the phase of this parity is over.
  __device__ bool IsOver(uint32_t parity) {
    uint32_t over;
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}\n"
        : "=r"(over)
        : "r"(address()), "r"(parity)
        : "memory");
    return over != 0;
  }
  __device__ uint32_t address() const { return SharedAddress(this); }

 private:
  uint64_t state_;
};

// A ring of kStages places, each filled by one side and emptied by the other.
template <int kStages>
struct Ring {
  TransactionBarrier full[kStages];
  TransactionBarrier empty[kStages];

  __device__ void Init(uint32_t fillers, uint32_t emptiers) {
    for (int i = 0; i < kStages; ++i) {
      full[i].Init(fillers);
      empty[i].Init(emptiers);
    }
  }
};

// Where one side stands in a ring. The filling side waits on `empty` with filled_parity(), which
// lets it pass a fresh ring; the emptying side on `full` with parity().
template <int kStages>
class RingCursor {
 public:
  __device__ int stage() const { return stage_; }
  __device__ uint32_t parity() const { return parity_; }
  __device__ uint32_t filled_parity() const { return parity_ ^ 1; }
  __device__ void Advance() {
    if (++stage_ == kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  int stage_ = 0;
  uint32_t parity_ = 0;
};

// Makes barrier initialisation visible to the copy engine.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders this thread's ordinary writes to shared memory before later reads by tensor cores or
// copies.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void CopyTensor(uint32_t to, const CUtensorMap& map, int32_t c0,
                                           int32_t c1, int32_t c2, int32_t c3, int32_t c4,
                                           const TransactionBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier.address()), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

__device__ __forceinline__ void CopyTensor(uint32_t to, const CUtensorMap& map, int32_t c0,
                                           int32_t c1, int32_t c2,
                                           const TransactionBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier.address()), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ __forceinline__ void CopyTensor(uint32_t to, const CUtensorMap& map, int32_t c0,
                                           int32_t c1, int32_t c2,
                                           const TransactionBarrier& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier.address()), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}

// How long L2 should keep what a copy brings.
__device__ __forceinline__ uint64_t EvictFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t EvictNormal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void CopyTensor(uint32_t to, const CUtensorMap& map, int32_t c0,
                                           int32_t c1, int32_t c2, int32_t c3, int32_t c4,
                                           const TransactionBarrier& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(&map), "r"(barrier.address()), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// 16 bytes from global to shared memory without passing registers; zeros if not `valid`.
__device__ __forceinline__ void CopyChunk(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

// Likewise 4 bytes.
__device__ __forceinline__ void CopyWord(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

// This thread's arrival, once its chunks have come. Whoever waits for them and gives them to tensor
// cores has to order the two himself (FenceAsyncProxy).
__device__ __forceinline__ void ArriveWithChunks(const TransactionBarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address())
               : "memory");
}

__device__ __forceinline__ void WaitForChunks() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void PrefetchL2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

__device__ __forceinline__ void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace kvtier::kernels
