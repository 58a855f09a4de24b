// SPDX-License-Identifier: Apache-2.0
// Hopper's asynchronous machinery in thin wrappers: transaction barriers (mbarrier) and the rings
// of stages built of them, tensor copies by the copy engine (TMA), named barriers, clusters of
// CTAs, and the share of registers that a warpgroup owns.
//
// A ring's stage is filled by producers and emptied by consumers. Each side waits for the other's
// barrier of that stage with a parity, which tells one use of the stage from the next.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/hopper/shared_memory.cuh"

namespace kvtier::kernels {

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
  __device__ void ArriveAndExpectBytes(uint32_t bytes) {
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

// A ring of kStages stages, each filled by producers and emptied by consumers.
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

// Where one side stands in a ring (CUTLASS: pipeline state). A producer waits on `empty` with
// filled_parity(), which lets it pass a fresh ring; a consumer waits on `full` with parity().
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

// One arrival for the whole warp, when all of its lanes have come here. Enough where the lanes did
// nothing to the stage themselves but wait for tensor cores or the copy engine. `lane`: of the
// caller.
__device__ __forceinline__ void ArriveOncePerWarp(TransactionBarrier& barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier.Arrive();
}
__device__ __forceinline__ void ArriveOncePerWarp(TransactionBarrier& barrier) {
  ArriveOncePerWarp(barrier, static_cast<int>(threadIdx.x % 32));
}

// Copies by the copy engine (TMA): one box of a tensor map (tensor_map.h) at coordinates c0, c1 and
// so on, innermost first, to shared memory at `to`. One thread issues it; `barrier` counts the
// bytes as they land. `policy`: how long L2 keeps them.
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

// This thread's arrival, once its asynchronous copies (CopyAsync16) have landed. A thread that
// waits for them and has tensor cores read them must order the two itself (FenceAsyncProxy).
__device__ __forceinline__ void ArriveOnCopies(const TransactionBarrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address())
               : "memory");
}

// Named barriers of the CTA (bar.sync, bar.arrive): `threads` of them sync or arrive per phase.
// Barrier 0 is __syncthreads'.
__device__ __forceinline__ void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// setmaxnreg: producer warpgroups give up registers that consumer warpgroups take. All warps of a
// warpgroup execute it; the sum over the CTA must not exceed its number at launch.
template <int kRegisters>
__device__ __forceinline__ void AllocateRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void DeallocateRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Clusters: the CTAs of one run at the same time, and each reads the others' shared memory and
// arrives at barriers there. "Peer" includes the CTA itself.

// This CTA's number in its cluster, and how many there are.
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ uint32_t ClusterCtas() {
  uint32_t ctas;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
  return ctas;
}

// All threads of all CTAs arrive once; a CTA that waits then knows that the peers have started, and
// sees what they wrote before they arrived.
__device__ __forceinline__ void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void WaitForCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where peer `rank` has what lies at `shared` here.
__device__ __forceinline__ uint32_t PeerAddress(uint32_t shared, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}

// Arrives at a peer's barrier. All earlier writes of the CTA's threads, up to their last common
// barrier, are visible to the threads that wait there with WaitForPeers.
__device__ __forceinline__ void ArriveAtPeer(uint32_t peer_barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_barrier)
               : "memory");
}

__device__ __forceinline__ void WaitForPeers(const TransactionBarrier& barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra again;\n}\n" ::"r"(barrier.address()),
      "r"(parity), "r"(TransactionBarrier::kSleepNanoseconds)
      : "memory");
}

__device__ __forceinline__ void StorePeer(uint32_t to, uint32_t word) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

__device__ __forceinline__ float4 LoadPeer(uint32_t from) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

}  // namespace kvtier::kernels
