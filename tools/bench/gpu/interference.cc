// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/byte_size.h"
#include "kernels/bench/cuda_bench.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/bench/gpu/kernel/read_memory.h"
#include "tools/bench/gpu/player.h"
#include "tools/replay/report.h"

namespace kvtier {
namespace {

using kernels::bench::CheckCuda;
using kernels::bench::DeviceMemory;
using kernels::bench::TimedStream;

// Some 130 us of an H200, and many times its cache.
constexpr uint64_t kReadBytes = 512 * kMiB;
constexpr int kSteps = 6000;
constexpr int kWarmSteps = 200;
constexpr auto kOffloadStart = std::chrono::milliseconds(2500);

// A kernel that reads memory, as a step of decoding does, again and again.
class StepTimer {
 public:
  StepTimer() : vram_(kReadBytes), digest_(sizeof(uint32_t)) {
    // Not zeros: those can be read faster than other bytes.
    std::vector<uint64_t> noise(kReadBytes / sizeof(uint64_t));
    std::ranges::generate(noise, std::mt19937_64(1));
    CheckCuda(cudaMemcpy(vram_.get(), noise.data(), kReadBytes, cudaMemcpyHostToDevice), "copy");
    CheckCuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0),
              "the device");
  }

  struct Step {
    double p50_us = 0;
    double p99_us = 0;
  };
  [[nodiscard]] Step Run() {
    std::vector<double> steps;
    for (int i = 0; i < kWarmSteps + kSteps; ++i) {
      const double us = stream_.Microseconds([this] {
        CheckCuda(ReadMemory(vram_.get(), kReadBytes, digest_.get<uint32_t>(), multiprocessors_,
                             stream_.get()),
                  "reading kernel");
      });
      if (i >= kWarmSteps) steps.push_back(us);
    }
    return {Percentile(steps, 0.50), Percentile(steps, 0.99)};
  }

 private:
  DeviceMemory vram_;
  DeviceMemory digest_;
  TimedStream stream_;
  int multiprocessors_ = 0;
};

}  // namespace

Result<GpuResults> MeasureInterference(const GpuBenchOptions& /*options*/) {
  StepTimer timer;
  const StepTimer::Step idle = timer.Run();
  GpuResults results;
  results.push_back(MakeGpuResult("kernel_p50_idle", idle.p50_us, "us", 0));
  results.push_back(MakeGpuResult("kernel_p99_idle", idle.p99_us, "us", 0));
  for (const uint64_t gigabytes : {10, 0}) {
    // Another process that offloads, as the daemon would, until this goes.
    KVT_ASSIGN_OR_RETURN(
        const SelfProcess other,
        SelfProcess::Start({"--offload-forever", fmt::format("{}", gigabytes * 1'000'000'000)}));
    // It says nothing; a machine that is slower shows less interference, never more.
    std::this_thread::sleep_for(kOffloadStart);
    const StepTimer::Step busy = timer.Run();
    const std::string name = gigabytes == 0 ? "full_speed" : fmt::format("{}GBps", gigabytes);
    results.push_back(MakeGpuResult("kernel_p50_offload_" + name, busy.p50_us, "us", idle.p50_us));
    results.push_back(MakeGpuResult("kernel_p99_offload_" + name, busy.p99_us, "us", idle.p99_us));
  }
  return results;
}

}  // namespace kvtier
