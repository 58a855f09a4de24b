// SPDX-License-Identifier: Apache-2.0
// The kernel for short queries: warpgroups that compute, and warps that feed them.
#include <cuda_runtime.h>

#include "kernels/hopper/launch.cuh"
#include "kernels/prefill/short_consumer.cuh"
#include "kernels/prefill/short_producer.cuh"
#include "kernels/prefill/short_widener.cuh"

namespace kvtier::kernels {
// Named: CMakeLists.txt says why.
inline namespace short_query {

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    PrefillShortKernel(const __grid_constant__ PrefillPlan plan) {
  extern __shared__ __align__(kAtomBytes) char raw_shared[];
  auto& shared = *reinterpret_cast<ShortShared<Traits>*>(raw_shared);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    PrefetchTensorMap(plan.key_map);
    PrefetchTensorMap(plan.value_map);
    shared.InitBarriers(plan.scales_per_token != 0);
    FenceBarrierInit();
  }
  __syncthreads();
  // Peers arrive at this CTA's barriers, and read its memory, once they know that it has started.
  ArriveAtCluster();
  if (plan.tables_first == 0) {
    WaitOnDependentGrids();
    LaunchDependentGrids();
  }
  if (warp < kShortConsumerWarps) {
    if constexpr (Traits::kFp8) AllocateRegisters<Traits::kRegistersTaken>();
    if (plan.tables_first != 0) {
      WaitOnDependentGrids();
      LaunchDependentGrids();
    }
    WaitForCluster();
    ShortConsumer<Traits>(plan, shared, warp / 4, threadIdx.x % 128).Run();
  } else {
    if constexpr (Traits::kFp8) DeallocateRegisters<Traits::kRegistersGiven>();
    if (warp == kShortConsumerWarps) {
      ShortCopier<Traits>(plan, shared, lane).Run();
    } else if (warp <= kShortConsumerWarps + kQueryWarps) {
      ShortQueryLoader<Traits>(plan, shared, threadIdx.x - kShortConsumers - 32).Run();
    } else if constexpr (Traits::kFp8) {
      ShortWidener<Traits>(plan, shared, threadIdx.x - kShortConsumers - kShortFeeders).Run();
    }
    WaitForCluster();
  }
  // A CTA must not exit while a peer may still read its shared memory.
  ArriveAtCluster();
  WaitForCluster();
}

template <typename Traits>
cudaError_t Prepare(int shared_bytes) {
  const auto kernel = PrefillShortKernel<Traits>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

// A launch's configuration, which points into itself.
struct ClusterLaunch {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};

  ClusterLaunch(int clusters, int cluster_ctas, int threads, int shared_bytes,
                cudaStream_t stream) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster_ctas);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(static_cast<unsigned>(clusters * cluster_ctas));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;
};

template <typename Traits>
cudaError_t LaunchTraits(const PrefillPlan& plan, int clusters, int cluster_ctas,
                         cudaStream_t stream) {
  constexpr int kBytes = sizeof(ShortShared<Traits>);
  static_assert(kBytes <= kMaxSharedBytes);
  const cudaError_t error = Prepare<Traits>(kBytes);
  if (error != cudaSuccess) return error;
  const ClusterLaunch launch(clusters, cluster_ctas, Traits::kThreads, kBytes, stream);
  return cudaLaunchKernelEx(&launch.config, PrefillShortKernel<Traits>, plan);
}

template <typename Traits>
int ClustersAtOnce(int cluster_ctas) {
  constexpr int kBytes = sizeof(ShortShared<Traits>);
  if (Prepare<Traits>(kBytes) != cudaSuccess) return 0;
  ClusterLaunch launch(1, cluster_ctas, Traits::kThreads, kBytes, nullptr);
  launch.config.numAttrs = 1;  // the cluster's size
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, PrefillShortKernel<Traits>, &launch.config) ==
      cudaSuccess) {
    return clusters;
  }
  static_cast<void>(cudaGetLastError());  // an unsupported size is not an error of the caller's
  return 0;
}

// For both head sizes that are built.
template <typename Element, bool kFp8>
cudaError_t LaunchHeadDims(const PrefillPlan& plan, int clusters, int cluster_ctas,
                           cudaStream_t stream) {
  return plan.params.kv.head_dim == 128
             ? LaunchTraits<ShortTraits<Element, kFp8, 128>>(plan, clusters, cluster_ctas, stream)
             : LaunchTraits<ShortTraits<Element, kFp8, 64>>(plan, clusters, cluster_ctas, stream);
}

}  // namespace short_query

int ShortClustersAtOnce(int cluster_ctas) {
  return ClustersAtOnce<ShortTraits<__half, false, 128>>(cluster_ctas);
}

cudaError_t LaunchPrefillShort(const PrefillPlan& plan, int clusters, int cluster_ctas,
                               cudaStream_t stream) {
  if (plan.params.kv.dtype == KVT_FP8_E4M3) {
    return LaunchHeadDims<__half, true>(plan, clusters, cluster_ctas, stream);
  }
  return plan.params.query_dtype == KVT_BF16
             ? LaunchHeadDims<__nv_bfloat16, false>(plan, clusters, cluster_ctas, stream)
             : LaunchHeadDims<__half, false>(plan, clusters, cluster_ctas, stream);
}

}  // namespace kvtier::kernels
