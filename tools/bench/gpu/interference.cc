// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "base/byte_size.h"
#include "tools/bench/gpu/cuda_check.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/bench/gpu/kernel/read_memory.h"
#include "tools/replay/report.h"

namespace kvtier {
namespace {

// Some 130 us of an H200, and many times its cache.
constexpr uint64_t kReadBytes = 512 * kMiB;
constexpr int kSteps = 6000;
constexpr int kWarmSteps = 200;
constexpr auto kOffloadStart = std::chrono::milliseconds(2500);

struct FreeVram {
  void operator()(void* memory) const { (void)cudaFree(memory); }
};

class StepTimer {
 public:
  [[nodiscard]] Status Open() {
    void* memory = nullptr;
    KVT_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&memory, kReadBytes + sizeof(uint32_t))));
    vram_.reset(memory);
    // Not zeros: those can be read faster than other bytes.
    const auto noise = std::make_unique_for_overwrite<std::byte[]>(kReadBytes);
    std::mt19937_64 random(1);
    for (uint64_t i = 0; i < kReadBytes; i += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(&noise[i], &word, sizeof(word));
    }
    KVT_RETURN_IF_ERROR(
        CheckCuda(cudaMemcpy(memory, noise.get(), kReadBytes, cudaMemcpyHostToDevice)));
    KVT_RETURN_IF_ERROR(
        CheckCuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0)));
    KVT_RETURN_IF_ERROR(CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
    KVT_RETURN_IF_ERROR(CheckCuda(cudaEventCreate(&start_)));
    return CheckCuda(cudaEventCreate(&end_));
  }
  ~StepTimer() {
    if (end_ != nullptr) (void)cudaEventDestroy(end_);
    if (start_ != nullptr) (void)cudaEventDestroy(start_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  struct Step {
    double p50_us = 0;
    double p99_us = 0;
  };
  [[nodiscard]] Result<Step> Run() {
    std::vector<double> steps;
    for (int i = 0; i < kWarmSteps + kSteps; ++i) {
      KVT_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(start_, stream_)));
      KVT_RETURN_IF_ERROR(CheckCuda(
          ReadMemory(vram_.get(), kReadBytes,
                     reinterpret_cast<uint32_t*>(static_cast<std::byte*>(vram_.get()) + kReadBytes),
                     multiprocessors_, stream_)));
      KVT_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(end_, stream_)));
      KVT_RETURN_IF_ERROR(CheckCuda(cudaEventSynchronize(end_)));
      float milliseconds = 0;
      KVT_RETURN_IF_ERROR(CheckCuda(cudaEventElapsedTime(&milliseconds, start_, end_)));
      if (i >= kWarmSteps) steps.push_back(1000.0 * milliseconds);
    }
    return Step{Percentile(steps, 0.50), Percentile(steps, 0.99)};
  }

 private:
  std::unique_ptr<void, FreeVram> vram_;
  int multiprocessors_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Another process that offloads, as the daemon would, until this goes.
class OffloadingProcess {
 public:
  explicit OffloadingProcess(uint64_t bytes_per_s) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    const std::string rate = fmt::format("{}", bytes_per_s);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execl(program.c_str(), program.c_str(), "--offload-forever", rate.c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~OffloadingProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  OffloadingProcess(const OffloadingProcess&) = delete;
  OffloadingProcess& operator=(const OffloadingProcess&) = delete;

 private:
  pid_t pid_ = -1;
};

}  // namespace

Result<GpuResults> MeasureInterference(const GpuBenchOptions& /*options*/) {
  StepTimer timer;
  KVT_RETURN_IF_ERROR(timer.Open());
  KVT_ASSIGN_OR_RETURN(const StepTimer::Step idle, timer.Run());
  GpuResults results;
  results.push_back(MakeGpuResult("kernel_p50_idle", idle.p50_us, "us", 0));
  results.push_back(MakeGpuResult("kernel_p99_idle", idle.p99_us, "us", 0));
  for (const uint64_t gigabytes : {10, 0}) {
    const OffloadingProcess other(gigabytes * 1'000'000'000);
    // It says nothing; a machine that is slower shows less interference, never more.
    std::this_thread::sleep_for(kOffloadStart);
    KVT_ASSIGN_OR_RETURN(const StepTimer::Step busy, timer.Run());
    const std::string name = gigabytes == 0 ? "full_speed" : fmt::format("{}GBps", gigabytes);
    results.push_back(MakeGpuResult("kernel_p50_offload_" + name, busy.p50_us, "us", idle.p50_us));
    results.push_back(MakeGpuResult("kernel_p99_offload_" + name, busy.p99_us, "us", idle.p99_us));
  }
  return results;
}

}  // namespace kvtier
