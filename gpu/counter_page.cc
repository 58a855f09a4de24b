// SPDX-License-Identifier: Apache-2.0
#include "gpu/counter_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "base/posix.h"

namespace kvtier {
namespace {

tl::unexpected<Error> Exhausted(const char* call) {
  return tl::unexpected<Error>(
      ErrnoError(ErrorCode::kResourceExhausted, errno, std::string(call) + " for a counter page"));
}

}  // namespace

StepCounter::StepCounter(std::shared_ptr<CounterPage> page, uint32_t slot, uint32_t base,
                         uint32_t steps)
    : page_(std::move(page)), slot_(slot), base_(base), steps_(steps) {}

StepCounter::~StepCounter() {
  // A device may have had a lower value under way when the end was written.
  if (ended_) page_->Write(slot_, ValueOf(steps_ + 1));
  page_->GiveBack(slot_);
}

void StepCounter::Shorten(uint32_t steps) {
  const std::lock_guard lock(mutex_);
  KVT_CHECK(steps <= steps_ && counted_ <= steps);
  steps_ = steps;
}

void StepCounter::Store(uint32_t done) {
  if (Claim(done)) Publish(done);
}

bool StepCounter::Claim(uint32_t done) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || done <= counted_) return false;
  counted_ = done;
  return true;
}

void StepCounter::Publish(uint32_t done) {
  const std::lock_guard lock(mutex_);
  if (ended_ || done <= published_) return;
  published_ = done;
  page_->Write(slot_, ValueOf(done));
}

void StepCounter::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
}

void StepCounter::End() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  ended_ = true;
  page_->Write(slot_, ValueOf(steps_ + 1));
}

Result<std::shared_ptr<CounterPage>> CounterPage::Create() {
  UniqueFd fd(::memfd_create("kvtier-counters", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Exhausted("memfd_create");
  if (::ftruncate(fd.get(), kCounterPageBytes) != 0) return Exhausted("ftruncate");
  // A holder of the descriptor could otherwise cut it under the daemon's feet (SIGBUS).
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Exhausted("sealing");
  }
  void* const address =
      ::mmap(nullptr, kCounterPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return Exhausted("mmap");
  return std::make_shared<CounterPage>(
      std::move(fd), std::span(static_cast<std::byte*>(address), kCounterPageBytes));
}

CounterPage::CounterPage(UniqueFd fd, std::span<std::byte> memory)
    : fd_(std::move(fd)),
      memory_(memory),
      next_base_(first_named()),
      named_(memory.size() / kCounterSlotBytes - first_named()) {
  // The last is taken first: low slots are handed out first.
  for (uint32_t slot = first_named(); slot > 0; --slot) free_slots_.push_back(slot - 1);
}

CounterPage::~CounterPage() { ::munmap(memory_.data(), memory_.size()); }

std::shared_ptr<StepCounter> CounterPage::Open(uint32_t steps) {
  uint32_t slot = 0;
  uint32_t base = 0;
  {
    const std::lock_guard lock(mutex_);
    if (free_slots_.empty()) return nullptr;
    slot = free_slots_.back();
    free_slots_.pop_back();
    base = next_base_[slot];
    next_base_[slot] = base + steps + 2;
  }
  Write(slot, base);
  return std::make_shared<StepCounter>(shared_from_this(), slot, base, steps);
}

bool CounterPage::CanBeNamed(uint32_t offset) const {
  const uint32_t slot = offset / kCounterSlotBytes;
  return offset % kCounterSlotBytes == 0 && slot >= first_named() &&
         slot < first_named() + named_.size();
}

std::shared_ptr<StepCounter> CounterPage::OpenNamed(uint32_t offset, uint32_t base,
                                                    uint32_t steps) {
  KVT_CHECK(CanBeNamed(offset));
  const uint32_t slot = offset / kCounterSlotBytes;
  {
    const std::lock_guard lock(mutex_);
    if (named_[slot - first_named()]) return nullptr;
    named_[slot - first_named()] = true;
  }
  Write(slot, base);
  return std::make_shared<StepCounter>(shared_from_this(), slot, base, steps);
}

void CounterPage::Write(uint32_t slot, uint32_t value) {
  std::atomic_ref(WordOf(slot)).store(value, std::memory_order_release);
}

void CounterPage::GiveBack(uint32_t slot) {
  const std::lock_guard lock(mutex_);
  if (slot < first_named()) {
    free_slots_.push_back(slot);
  } else {
    named_[slot - first_named()] = false;
  }
}

uint64_t CountingOrder::Add(std::vector<CountedStep> counted) {
  requests_.push_back({std::move(counted)});
  return first_ + requests_.size() - 1;
}

void CountingOrder::Landed(uint64_t request, bool succeeded) {
  requests_[request - first_].landed = true;
  requests_[request - first_].succeeded = succeeded;
  for (; !requests_.empty() && requests_.front().landed; requests_.pop_front(), ++first_) {
    const Request& front = requests_.front();
    for (const CountedStep& step : front.counted) {
      if (front.succeeded) {
        step.counter->Store(step.done);
      } else {
        step.counter->Stop();
      }
    }
  }
}

}  // namespace kvtier
