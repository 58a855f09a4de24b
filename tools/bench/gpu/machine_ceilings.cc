// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "base/posix.h"
#include "base/units.h"
#include "kernels/bench/cuda_bench.h"
#include "tools/bench/bench.h"
#include "tools/bench/gpu/gpu_bench.h"

namespace kvtier {
namespace {

using kernels::bench::CheckCuda;
using kernels::bench::DeviceMemory;
using kernels::bench::TimedStream;

constexpr uint64_t kCopyBytes = 1 * kGiB;

constexpr uint64_t kStepBytes = 8 * kMiB;
constexpr uint64_t kPinnedBytes = 1 * kGiB;

// Memory with huge pages, and what of it is pinned.
class Memory {
 public:
  explicit Memory(uint64_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (valid()) ::madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  ~Memory() {
    for (uint64_t at = 0; at < pinned_bytes_; at += kPinnedBytes) {
      (void)cudaHostUnregister(data_ + at);
    }
    if (valid()) ::munmap(data_, bytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] bool valid() const { return data_ != MAP_FAILED; }

  // With a thread for each core. Errors: kResourceExhausted.
  [[nodiscard]] Status Touch() {
    std::atomic<uint64_t> next = 0;
    std::atomic<int> refused = 0;  // an errno
    const auto work = [&] {
      for (uint64_t at = next.fetch_add(kStepBytes); at < bytes_; at = next.fetch_add(kStepBytes)) {
        const uint64_t bytes = std::min(kStepBytes, bytes_ - at);
        if (::madvise(data_ + at, bytes, MADV_POPULATE_WRITE) != 0) refused = errno;
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) helpers.emplace_back(work);
      work();
    }
    if (refused == 0) return {};
    return tl::unexpected(ErrnoError(ErrorCode::kResourceExhausted, refused, "touching memory"));
  }

  void Pin() {
    for (uint64_t at = 0; at < bytes_; at += kPinnedBytes) {
      CheckCuda(cudaHostRegister(data_ + at, std::min(kPinnedBytes, bytes_ - at), 0), "pinning");
      pinned_bytes_ += kPinnedBytes;
    }
  }

 private:
  const uint64_t bytes_;
  std::byte* const data_;
  uint64_t pinned_bytes_ = 0;
};

}  // namespace

CopyCeiling MeasureCopyCeiling(uint32_t repetitions) {
  const DeviceMemory host(kCopyBytes, DeviceMemory::Where::kPinnedHost);
  const DeviceMemory vram(kCopyBytes);
  TimedStream stream;
  const auto gbps = [&](const DeviceMemory& target, const DeviceMemory& source) {
    const double us = stream.Microseconds([&] {
      CheckCuda(
          cudaMemcpyAsync(target.get(), source.get(), kCopyBytes, cudaMemcpyDefault, stream.get()),
          "copy");
    });
    return static_cast<double>(kCopyBytes) / 1e3 / us;
  };
  std::vector<double> up, down;
  for (uint32_t i = 0; i < repetitions; ++i) {
    up.push_back(gbps(vram, host));
    down.push_back(gbps(host, vram));
  }
  return {Median(up), Median(down)};
}

void LoadForever() {
  const DeviceMemory host(kCopyBytes, DeviceMemory::Where::kPinnedHost);
  const DeviceMemory vram(kCopyBytes);
  while (true) {
    CheckCuda(cudaMemcpy(vram.get(), host.get(), kCopyBytes, cudaMemcpyHostToDevice), "copy");
  }
}

Result<double> MeasureArenaCeiling(uint64_t bytes) {
  CheckCuda(cudaFree(nullptr), "the context");
  const auto start = std::chrono::steady_clock::now();
  Memory memory(bytes);
  if (!memory.valid()) {
    return tl::unexpected(ErrnoError(ErrorCode::kResourceExhausted, errno, "bare memory"));
  }
  KVT_RETURN_IF_ERROR(memory.Touch());
  memory.Pin();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace kvtier
