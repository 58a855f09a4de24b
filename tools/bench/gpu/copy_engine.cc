// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "base/bytes.h"
#include "base/executor.h"
#include "base/units.h"
#include "gpu/cuda_device.h"
#include "tools/bench/bench.h"
#include "tools/bench/gpu/gpu_bench.h"

namespace kvtier {
namespace {

// The size of the cache's requests.
constexpr uint64_t kRequestBytes = 4 * kMiB;

// A device, a pool and host memory for both directions at once.
class Rig {
 public:
  Rig(std::unique_ptr<Device> device, std::unique_ptr<DevicePool> pool, BlockingLoop* loop,
      uint64_t bytes)
      : bytes_(bytes),
        loop_(*loop),
        device_(std::move(device)),
        pool_(std::move(pool)),
        host_(2 * bytes) {}
  ~Rig() { device_->host_pinner()->Unpin(host_.span()); }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  [[nodiscard]] Status Pin() { return device_->host_pinner()->Pin(host_.span()); }

  // Moves the whole set in blocks at random places; seconds until all have landed.
  [[nodiscard]] double Run(uint64_t block_bytes, bool up, bool down, CopyPriority priority) {
    int left = 0;
    const auto start = std::chrono::steady_clock::now();
    // In turns, as two streams of requests would come.
    std::vector<CopyRequest> requests[2];
    if (up) requests[0] = Requests(CopyDirection::kHostToPool, block_bytes, priority);
    if (down) requests[1] = Requests(CopyDirection::kPoolToHost, block_bytes, priority);
    for (size_t i = 0; i < std::max(requests[0].size(), requests[1].size()); ++i) {
      for (auto& direction : requests) {
        if (i >= direction.size()) continue;
        ++left;
        direction[i].done = [this, &left](const Status& status) {
          failed_ |= !status;
          --left;
        };
        device_->Copy(std::move(direction[i]));
      }
    }
    loop_.RunUntil([&] { return left == 0; });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // Moves the whole set up, layer by layer; when each layer had landed in all blocks, in
  // milliseconds.
  [[nodiscard]] std::vector<double> RunLayers(uint64_t block_bytes, uint64_t layers) {
    const uint64_t slice_bytes = block_bytes / layers;
    std::vector<double> landed_ms;
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t layer = 0; layer < layers; ++layer) {
      CopyRequest request{.pool = pool_.get(), .direction = CopyDirection::kHostToPool};
      for (uint64_t offset = layer * slice_bytes; offset < bytes_; offset += block_bytes) {
        request.copies.push_back({offset, host_.span().data() + offset, slice_bytes});
      }
      request.done = [&](const Status& status) {
        failed_ |= !status;
        landed_ms.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                .count());
      };
      device_->Copy(std::move(request));
    }
    loop_.RunUntil([&] { return landed_ms.size() == layers; });
    return landed_ms;
  }

  [[nodiscard]] bool failed() const { return failed_; }

 private:
  std::vector<CopyRequest> Requests(CopyDirection direction, uint64_t block_bytes,
                                    CopyPriority priority) {
    const uint64_t blocks = bytes_ / block_bytes;
    const bool up = direction == CopyDirection::kHostToPool;
    std::vector<uint64_t> places(blocks);
    std::iota(places.begin(), places.end(), 0);
    std::ranges::shuffle(places, random_);
    std::vector<CopyRequest> requests;
    for (uint64_t i = 0; i < blocks; ++i) {
      if (i * block_bytes % std::max(kRequestBytes, block_bytes) == 0) {
        requests.push_back({.pool = pool_.get(), .direction = direction, .priority = priority});
      }
      // Each direction has its half of the pool and of host memory.
      const uint64_t half = up ? 0 : bytes_;
      requests.back().copies.push_back({half + places[i] * block_bytes,
                                        host_.span().data() + half + i * block_bytes, block_bytes});
    }
    return requests;
  }

  const uint64_t bytes_;
  BlockingLoop& loop_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<DevicePool> pool_;
  AlignedBuffer host_;
  std::mt19937_64 random_{1};
  bool failed_ = false;
};

Result<std::unique_ptr<Rig>> MakeRig(BlockingLoop* loop, uint64_t bytes,
                                     CudaDeviceOptions options) {
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenCudaDevice(std::move(options), loop));
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<DevicePool> pool, device->CreatePool(2 * bytes));
  pool->AwaitReady();
  auto rig = std::make_unique<Rig>(std::move(device), std::move(pool), loop, bytes);
  KVT_RETURN_IF_ERROR(rig->Pin());
  return rig;
}

double MedianGbps(Rig& rig, const GpuBenchOptions& options, uint64_t block_bytes, bool up,
                  bool down) {
  const double bytes = static_cast<double>(options.set_bytes) * (up && down ? 2 : 1);
  std::vector<double> rates;
  for (uint32_t i = 0; i < options.repetitions + 1; ++i) {
    const double seconds = rig.Run(block_bytes, up, down, CopyPriority::kDemand);
    if (i > 0) rates.push_back(bytes / 1e9 / seconds);  // the first warms up
  }
  return Median(rates);
}

// A prefix in the order in which an engine computes: layer 0 of all blocks, then layer 1, and so
// on.
constexpr uint64_t kPrefixBlocks = 625;
constexpr uint64_t kPrefixBlockBytes = 2 * kMiB;
constexpr uint64_t kLayers = 32;

}  // namespace

Result<GpuResults> MeasureLayerOrder(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  constexpr uint64_t kBytes = kPrefixBlocks * kPrefixBlockBytes;
  BlockingLoop loop;
  KVT_ASSIGN_OR_RETURN(const auto rig, MakeRig(&loop, kBytes, {}));
  std::vector<double> first_ms, last_ms;
  for (uint32_t i = 0; i < options.repetitions + 1; ++i) {
    const std::vector<double> layers_ms = rig->RunLayers(kPrefixBlockBytes, kLayers);
    if (i == 0) continue;  // warms up
    first_ms.push_back(layers_ms.front());
    last_ms.push_back(layers_ms.back());
  }
  if (rig->failed()) return MakeError(ErrorCode::kIoError, "copy_failed");
  const double bound_ms = static_cast<double>(kBytes) / 1e6 / ceiling.to_pool_gbps;
  return GpuResults{
      MakeGpuResult("copy_engine_prefix_10k_first_layer", Median(first_ms), "ms",
                    bound_ms / static_cast<double>(kLayers)),
      MakeGpuResult("copy_engine_prefix_10k_all_layers", Median(last_ms), "ms", bound_ms)};
}

Result<GpuResults> MeasureCopyEngine(const GpuBenchOptions& options, const CopyCeiling& ceiling) {
  BlockingLoop loop;
  KVT_ASSIGN_OR_RETURN(const auto rig, MakeRig(&loop, options.set_bytes,
                                               {.chunk_bytes = options.chunk_bytes,
                                                .chunks_in_flight = options.chunks_in_flight}));
  GpuResults results;
  for (const uint64_t block_bytes : {64 * kKiB, 512 * kKiB, 2 * kMiB}) {
    const std::string size = SizeName(block_bytes);
    results.push_back(MakeGpuResult("copy_engine_to_pool_" + size,
                                    MedianGbps(*rig, options, block_bytes, true, false), "GB/s",
                                    ceiling.to_pool_gbps));
    results.push_back(MakeGpuResult("copy_engine_to_host_" + size,
                                    MedianGbps(*rig, options, block_bytes, false, true), "GB/s",
                                    ceiling.to_host_gbps));
  }
  results.push_back(MakeGpuResult("copy_engine_both_ways_2MiB",
                                  MedianGbps(*rig, options, 2 * kMiB, true, true), "GB/s",
                                  (ceiling.to_pool_gbps + ceiling.to_host_gbps) / 2));
  if (rig->failed()) return MakeError(ErrorCode::kIoError, "copy_failed");
  return results;
}

Status OffloadForever(uint64_t bytes_per_s) {
  BlockingLoop loop;
  KVT_ASSIGN_OR_RETURN(const auto rig,
                       MakeRig(&loop, 512 * kMiB, {.background_bytes_per_s = bytes_per_s}));
  while (!rig->failed()) {
    (void)rig->Run(2 * kMiB, false, true, CopyPriority::kBackground);
  }
  return MakeError(ErrorCode::kIoError, "copy_failed");
}

}  // namespace kvtier
