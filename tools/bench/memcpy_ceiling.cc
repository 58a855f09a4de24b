// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "tools/bench/ceiling.h"

namespace kvtier {
namespace {

std::byte* MapAnonymous(uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

std::byte* MapShared(uint64_t bytes) {
  const UniqueFd fd(::memfd_create("kvtier-bench", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return nullptr;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

Result<MemcpyCeiling> MemcpyCeiling::Create(const CopyWork& work) {
  MemcpyCeiling ceiling(work);
  ceiling.source_ = MapAnonymous(ceiling.bytes());
  ceiling.target_ = MapShared(ceiling.bytes());
  if (ceiling.source_ == nullptr || ceiling.target_ == nullptr) {
    return MakeError(ErrorCode::kResourceExhausted, "no_memory",
                     fmt::format("two times {} bytes", ceiling.bytes()));
  }
  std::memset(ceiling.source_, 1, ceiling.bytes());
  std::memset(ceiling.target_, 2, ceiling.bytes());
  return ceiling;
}

MemcpyCeiling::MemcpyCeiling(MemcpyCeiling&& other) noexcept
    : work_(other.work_),
      source_(std::exchange(other.source_, nullptr)),
      target_(std::exchange(other.target_, nullptr)) {}

MemcpyCeiling::~MemcpyCeiling() {
  if (source_ != nullptr) ::munmap(source_, bytes());
  if (target_ != nullptr) ::munmap(target_, bytes());
}

double MemcpyCeiling::Run() {
  std::atomic<uint64_t> next = 0;
  const auto copy = [this, &next] {
    for (uint64_t block = next++; block < work_.blocks; block = next++) {
      const uint64_t offset = block * work_.block_bytes;
      std::memcpy(target_ + offset, source_ + offset, work_.block_bytes);
    }
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < work_.threads; ++i) threads.emplace_back(copy);
  copy();
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace kvtier
