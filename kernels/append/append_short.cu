// The kernel for short suffixes: warpgroups that compute, and warps that feed them.
#include <cuda_runtime.h>

#include "kernels/append/short_consumer.cuh"
#include "kernels/append/short_producer.cuh"
#include "kernels/blocks/overlapped_launch.cuh"
#include "kernels/hopper.h"

namespace kvtier::kernels {
namespace {

template <typename Traits>
__global__ void __launch_bounds__(kShortThreads, 1)
    AppendShortKernel(const __grid_constant__ AppendPlan plan) {
  extern __shared__ __align__(kAtomBytes) char raw_shared[];
  auto& shared = *reinterpret_cast<ShortShared<Traits>*>(raw_shared);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    PrefetchTensorMap(plan.key_map);
    PrefetchTensorMap(plan.value_map);
    shared.InitBarriers();
    FenceBarrierInit();
  }
  __syncthreads();
  // Peers arrive at this CTA's barriers, and read its memory, once they know that it has started.
  ArriveAtCluster();
  if (plan.tables_first == 0) {
    WaitForEarlierGrids();
    LetLaterGridsStart();
  }
  if (warp < kShortConsumerWarps) {
    if (plan.tables_first != 0) {
      WaitForEarlierGrids();
      LetLaterGridsStart();
    }
    WaitForCluster();
    ShortConsumer<Traits>(plan, shared, warp / 4, threadIdx.x % 128).Run();
  } else if (warp == kShortConsumerWarps) {
    ShortCopier<Traits>(plan, shared, lane).Run();
    WaitForCluster();
  } else {
    ShortQueryLoader<Traits>(plan, shared, threadIdx.x - kShortConsumers - 32).Run();
    WaitForCluster();
  }
  // Nobody leaves whose memory a peer may still read.
  ArriveAtCluster();
  WaitForCluster();
}

template <typename Traits>
cudaError_t Prepare(int shared_bytes) {
  const auto kernel = AppendShortKernel<Traits>;
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

  ClusterLaunch(int clusters, int cluster_ctas, int shared_bytes, cudaStream_t stream) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster_ctas);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(static_cast<unsigned>(clusters * cluster_ctas));
    config.blockDim = dim3(kShortThreads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;
};

template <typename Traits>
cudaError_t LaunchTraits(const AppendPlan& plan, int clusters, int cluster_ctas,
                         cudaStream_t stream) {
  constexpr int kBytes = sizeof(ShortShared<Traits>);
  static_assert(kBytes <= kMaxSharedBytes);
  const cudaError_t error = Prepare<Traits>(kBytes);
  if (error != cudaSuccess) return error;
  const ClusterLaunch launch(clusters, cluster_ctas, kBytes, stream);
  return cudaLaunchKernelEx(&launch.config, AppendShortKernel<Traits>, plan);
}

template <typename Traits>
int ClustersAtOnce(int cluster_ctas) {
  constexpr int kBytes = sizeof(ShortShared<Traits>);
  if (Prepare<Traits>(kBytes) != cudaSuccess) return 0;
  ClusterLaunch launch(1, cluster_ctas, kBytes, nullptr);
  launch.config.numAttrs = 1;  // the cluster's size
  int clusters = 0;
  return cudaOccupancyMaxActiveClusters(&clusters, AppendShortKernel<Traits>, &launch.config) ==
                 cudaSuccess
             ? clusters
             : 0;
}

}  // namespace

int ShortClustersAtOnce(int cluster_ctas) {
  return ClustersAtOnce<ShortTraits<__half, 128>>(cluster_ctas);
}

cudaError_t LaunchAppendShort(const AppendPlan& plan, int clusters, int cluster_ctas,
                              cudaStream_t stream) {
  const bool wide = plan.params.kv.head_dim == 128;
  if (plan.params.query_dtype == KVT_BF16) {
    return wide
               ? LaunchTraits<ShortTraits<__nv_bfloat16, 128>>(plan, clusters, cluster_ctas, stream)
               : LaunchTraits<ShortTraits<__nv_bfloat16, 64>>(plan, clusters, cluster_ctas, stream);
  }
  return wide ? LaunchTraits<ShortTraits<__half, 128>>(plan, clusters, cluster_ctas, stream)
              : LaunchTraits<ShortTraits<__half, 64>>(plan, clusters, cluster_ctas, stream);
}

}  // namespace kvtier::kernels
