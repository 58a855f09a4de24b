// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/memory_toucher.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/populate_steps.h"
#include "base/units.h"

namespace kvtier {
namespace {

// The unit in which the threads share out the memory, and in which WaitFor counts it.
constexpr uint64_t kStepBytes = 8 * kMiB;

// 0 or an errno. The kernel fills the pages without writing to any that exist.
int TouchAtOnce(std::span<std::byte> memory) {
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  // Before Linux 5.14. No other thread uses the memory yet, but it may have been kept, and what
  // lies in it stays.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  volatile std::byte* const bytes = memory.data();
  for (size_t i = 0; i < memory.size(); i += page) bytes[i] = bytes[i];
  return 0;
}

int Touch(std::span<std::byte> memory, PopulateSteps* steps) {
  while (!memory.empty()) {
    const auto part = memory.first(std::min(steps->next_bytes(), memory.size()));
    const int outcome = steps->Time([part] { return TouchAtOnce(part); });
    if (outcome != 0) return outcome;
    memory = memory.subspan(part.size());
  }
  return 0;
}

}  // namespace

MemoryToucher::MemoryToucher(std::span<std::byte> memory, int threads,
                             std::function<void()> give_way)
    : memory_(memory),
      give_way_(std::move(give_way)),
      done_((memory.size() + kStepBytes - 1) / kStepBytes) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), "arena-touch");
  }
  {
    const std::lock_guard lock(mutex_);
    begun_ = true;
  }
  progressed_.notify_all();
}

MemoryToucher::~MemoryToucher() {
  Stop();
  for (std::thread& thread : threads_) thread.join();
}

void MemoryToucher::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  progressed_.notify_all();
}

int MemoryToucher::WaitFor(uint64_t bytes) {
  const uint64_t steps = (bytes + kStepBytes - 1) / kStepBytes;
  std::unique_lock lock(mutex_);
  progressed_.wait(lock, [&] { return done_in_front_ >= steps || failure_ != 0 || stopping_; });
  if (done_in_front_ >= steps) return 0;
  return failure_ != 0 ? failure_ : ECANCELED;
}

void MemoryToucher::Work() {
  {
    std::unique_lock lock(mutex_);
    progressed_.wait(lock, [this] { return begun_; });
  }
  PopulateSteps steps;
  while (!stopping_) {
    if (give_way_) give_way_();
    const uint64_t step = next_step_.fetch_add(1);
    if (step >= done_.size()) return;
    const uint64_t begin = step * kStepBytes;
    const uint64_t bytes = std::min(kStepBytes, memory_.size() - begin);
    const int outcome = Touch(memory_.subspan(begin, bytes), &steps);
    {
      const std::lock_guard lock(mutex_);
      Finish(step, outcome);
    }
    progressed_.notify_all();
    if (outcome != 0) return;
  }
}

void MemoryToucher::Finish(uint64_t step, int outcome) {
  if (outcome != 0) {
    if (failure_ == 0) failure_ = outcome;
    return;
  }
  done_[step] = true;
  while (done_in_front_ < done_.size() && done_[done_in_front_]) ++done_in_front_;
}

}  // namespace kvtier
