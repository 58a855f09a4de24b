// SPDX-License-Identifier: Apache-2.0
// What the CTAs of one cluster do with each other: they run at the same time, and each reads the
// others' shared memory and arrives at barriers there. "Peer" includes the CTA itself.
#pragma once

#include <cstdint>

#include "kernels/hopper/pipeline.cuh"

namespace kvtier::kernels {

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

// All threads of all CTAs arrive once; whoever waits then knows that the peers have started, and
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

// At a peer's barrier. What the CTA's threads did before they last met is done for whoever waits
// there with WaitForPeers.
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
