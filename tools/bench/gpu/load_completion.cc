// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/bench/cuda_bench.h"
#include "tools/bench/bench.h"
#include "tools/bench/gpu/bench_daemon.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/bench/gpu/kernel/read_memory.h"
#include "tools/support/admin.h"

namespace kvtier {
namespace {

using kernels::bench::CheckCuda;
using kernels::bench::DeviceMemory;
using kernels::bench::TimedStream;

constexpr uint64_t kBlocks = 625;
constexpr uint64_t kBlockBytes = 2 * kMiB;
constexpr uint32_t kLayers = 32;
constexpr uint64_t kReadBytes = 4 * kKiB;

using BeforeWait = BenchClient::BeforeWait;

// A stream and a kernel that takes next to no time.
class SmallKernel {
 public:
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  // Runs behind the stream's work; returns when it has run.
  [[nodiscard]] Status Run() {
    CheckCuda(ReadMemory(vram_.get(), kReadBytes, digest_.get<uint32_t>(), 1, stream()),
              "small kernel");
    cudaError_t code = cudaErrorNotReady;
    while (code == cudaErrorNotReady) code = cudaStreamQuery(stream());
    CheckCuda(code, "small kernel");
    return {};
  }

 private:
  DeviceMemory vram_{kReadBytes};
  DeviceMemory digest_{sizeof(uint32_t)};
  TimedStream stream_;
};

BeforeWait HostWaitsForLayer() {
  return [](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
    const auto waited = pool->WaitLayers(acquired, 1);
    return waited ? Status() : FromClient(waited.error());
  };
}

BeforeWait HostWaitsForLayerThen(SmallKernel* kernel) {
  return [kernel](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
    KVT_RETURN_IF_ERROR(HostWaitsForLayer()(pool, acquired));
    return kernel->Run();
  };
}

BeforeWait StreamWaitsForStepThen(SmallKernel* kernel) {
  return [kernel](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
    const auto queued = pool->WaitOnStream(*acquired, 1, kernel->stream());
    if (!queued) return FromClient(queued.error());
    return kernel->Run();
  };
}

BeforeWait HostWaitsForBlockThen(SmallKernel* kernel) {
  return [kernel](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
    const auto waited = pool->Wait(acquired, 1);
    if (!waited) return FromClient(waited.error());
    return kernel->Run();
  };
}

// Loads of two sets that take turns in a pool that holds one.
class Turns {
 public:
  Turns(PrivateDaemon daemon, BenchClient client, uint64_t blocks)
      : daemon_(std::move(daemon)),
        client_(std::move(client)),
        sets_{BenchClient::Set(1, blocks), BenchClient::Set(2, blocks)} {}

  [[nodiscard]] static Result<Turns> Start(const GpuBenchOptions& options, uint64_t blocks) {
    const BenchSizes sizes{
        .block_bytes = kBlockBytes, .blocks = blocks, .spare_pool_blocks = blocks == 1 ? 0u : 2u};
    KVT_ASSIGN_OR_RETURN(PrivateDaemon daemon, StartBenchDaemon(options, sizes, {}));
    KVT_ASSIGN_OR_RETURN(BenchClient client, BenchClient::Connect(daemon, kBlockBytes, kLayers));
    Turns turns(std::move(daemon), std::move(client), blocks);
    KVT_RETURN_IF_ERROR(StoreBelow(turns.client_, turns.sets_));
    return turns;
  }

  struct Medians {
    double first_ms = 0;
    double all_ms = 0;
  };
  [[nodiscard]] Result<Medians> Measure(uint32_t repetitions, kvt_load_order order,
                                        const BeforeWait& before) {
    std::vector<double> first_ms, all_ms;
    for (uint32_t i = 0; i < repetitions + 2; ++i) {
      KVT_ASSIGN_OR_RETURN(const TimedLoad load, client_.Load(sets_[turn_++ % 2], order, before));
      const bool whole = load.ready == sets_[0].size() && load.hit[0] <= 2;
      if (!whole) return MakeError(ErrorCode::kWrongState, "wrong_tier");
      if (i < 2) continue;  // warms up
      first_ms.push_back(1e3 * load.first_seconds);
      all_ms.push_back(1e3 * load.seconds);
    }
    return Medians{Median(first_ms), Median(all_ms)};
  }

 private:
  PrivateDaemon daemon_;
  BenchClient client_;
  std::vector<Set> sets_;
  uint32_t turn_ = 0;
};

}  // namespace

Result<GpuResults> MeasureCompletion(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  const double block_ms = static_cast<double>(kBlockBytes) / 1e6 / ceiling.to_pool_gbps;
  const double bound_ms = block_ms * kBlocks;
  SmallKernel kernel;
  KVT_ASSIGN_OR_RETURN(Turns prefix, Turns::Start(options, kBlocks));
  const uint32_t repetitions = options.repetitions;
  KVT_ASSIGN_OR_RETURN(const auto host,
                       prefix.Measure(repetitions, KVT_LOAD_LAYERS, HostWaitsForLayer()));
  KVT_ASSIGN_OR_RETURN(const auto host_kernel, prefix.Measure(repetitions, KVT_LOAD_LAYERS,
                                                              HostWaitsForLayerThen(&kernel)));
  KVT_ASSIGN_OR_RETURN(const auto stream_kernel, prefix.Measure(repetitions, KVT_LOAD_LAYERS,
                                                                StreamWaitsForStepThen(&kernel)));
  KVT_ASSIGN_OR_RETURN(Turns one, Turns::Start(options, 1));
  KVT_ASSIGN_OR_RETURN(const auto one_host, one.Measure(10 * repetitions, KVT_LOAD_BLOCKS,
                                                        HostWaitsForBlockThen(&kernel)));
  KVT_ASSIGN_OR_RETURN(const auto one_stream, one.Measure(10 * repetitions, KVT_LOAD_BLOCKS,
                                                          StreamWaitsForStepThen(&kernel)));
  return GpuResults{
      MakeGpuResult("prefix_10k_first_layer", host.first_ms, "ms", bound_ms / kLayers),
      MakeGpuResult("prefix_10k_all_layers", host.all_ms, "ms", bound_ms),
      MakeGpuResult("first_layer_kernel_host_wait", host_kernel.first_ms, "ms", bound_ms / kLayers),
      MakeGpuResult("first_layer_kernel_stream_wait", stream_kernel.first_ms, "ms",
                    bound_ms / kLayers),
      MakeGpuResult("one_block_kernel_host_wait", one_host.first_ms, "ms", block_ms),
      MakeGpuResult("one_block_kernel_stream_wait", one_stream.first_ms, "ms", block_ms)};
}

}  // namespace kvtier
