// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "tools/bench/bench.h"
#include "tools/bench/gpu/cuda_check.h"
#include "tools/bench/gpu/gpu_bench.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = uint64_t{1} << 30;

struct FreePinned {
  void operator()(void* memory) const { (void)cudaFreeHost(memory); }
};
struct FreeVram {
  void operator()(void* memory) const { (void)cudaFree(memory); }
};

class Timer {
 public:
  [[nodiscard]] Status Open() {
    KVT_RETURN_IF_ERROR(CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
    KVT_RETURN_IF_ERROR(CheckCuda(cudaEventCreate(&start_)));
    return CheckCuda(cudaEventCreate(&end_));
  }
  ~Timer() {
    if (end_ != nullptr) (void)cudaEventDestroy(end_);
    if (start_ != nullptr) (void)cudaEventDestroy(start_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  [[nodiscard]] Result<double> CopyGbps(void* target, const void* source) {
    KVT_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(start_, stream_)));
    KVT_RETURN_IF_ERROR(
        CheckCuda(cudaMemcpyAsync(target, source, kBytes, cudaMemcpyDefault, stream_)));
    KVT_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(end_, stream_)));
    KVT_RETURN_IF_ERROR(CheckCuda(cudaEventSynchronize(end_)));
    float milliseconds = 0;
    KVT_RETURN_IF_ERROR(CheckCuda(cudaEventElapsedTime(&milliseconds, start_, end_)));
    return static_cast<double>(kBytes) / 1e6 / milliseconds;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

Result<CopyCeiling> MeasureCopyCeiling(uint32_t repetitions) {
  void* memory = nullptr;
  KVT_RETURN_IF_ERROR(CheckCuda(cudaMallocHost(&memory, kBytes)));
  const std::unique_ptr<void, FreePinned> host(memory);
  KVT_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&memory, kBytes)));
  const std::unique_ptr<void, FreeVram> vram(memory);
  Timer timer;
  KVT_RETURN_IF_ERROR(timer.Open());
  std::vector<double> up, down;
  for (uint32_t i = 0; i < repetitions; ++i) {
    KVT_ASSIGN_OR_RETURN(const double to_pool, timer.CopyGbps(vram.get(), host.get()));
    KVT_ASSIGN_OR_RETURN(const double to_host, timer.CopyGbps(host.get(), vram.get()));
    up.push_back(to_pool);
    down.push_back(to_host);
  }
  return CopyCeiling{Median(up), Median(down)};
}

}  // namespace kvtier
