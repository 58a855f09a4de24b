// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "base/byte_size.h"
#include "base/errno_error.h"
#include "tools/bench/gpu/cuda_check.h"
#include "tools/bench/gpu/gpu_bench.h"

namespace kvtier {
namespace {

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

  [[nodiscard]] Status Pin() {
    for (uint64_t at = 0; at < bytes_; at += kPinnedBytes) {
      KVT_RETURN_IF_ERROR(
          CheckCuda(cudaHostRegister(data_ + at, std::min(kPinnedBytes, bytes_ - at), 0)));
      pinned_bytes_ += kPinnedBytes;
    }
    return {};
  }

 private:
  const uint64_t bytes_;
  std::byte* const data_;
  uint64_t pinned_bytes_ = 0;
};

}  // namespace

Result<double> MeasureArenaCeiling(uint64_t bytes) {
  KVT_RETURN_IF_ERROR(CheckCuda(cudaFree(nullptr)));
  const auto start = std::chrono::steady_clock::now();
  Memory memory(bytes);
  if (!memory.valid()) {
    return tl::unexpected(ErrnoError(ErrorCode::kResourceExhausted, errno, "bare memory"));
  }
  KVT_RETURN_IF_ERROR(memory.Touch());
  KVT_RETURN_IF_ERROR(memory.Pin());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace kvtier
