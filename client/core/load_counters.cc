// SPDX-License-Identifier: Apache-2.0
#include "client/core/load_counters.h"

#include <poll.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/memory_file.h"
#include "client/core/own_thread.h"

namespace kvtier::client {
namespace {

// More memory than this is no counter page.
constexpr uint64_t kMaxPageBytes = 1 << 20;
// Beyond whatever is waited for: streams compare the difference as a signed number.
constexpr uint32_t kReleasedBy = 1u << 30;

// From one slot to the next: a cache line, since a GPU may write to it. The second half of the page
// is for requests that name their counters.
constexpr uint32_t kSlotBytes = 64;

constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::milliseconds kShortSleeps{30};
constexpr timespec kShortSleep{0, 20'000};

constexpr int kRepetitions = 20;
constexpr int kPauseMs = 50;

}  // namespace

Result<std::shared_ptr<LoadCounters>> LoadCounters::Map(UniqueFd fd) {
  const uint64_t bytes = fd.valid() ? FileBytes(fd.get()) : 0;
  if (bytes == 0 || bytes > kMaxPageBytes) {
    return MakeError(ErrorCode::kCorrupt, "counters_missing");
  }
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    return MakeError(ErrorCode::kIoError, "counters_map_failed", std::strerror(errno));
  }
  return std::make_shared<LoadCounters>(std::move(fd),
                                        std::span(static_cast<std::byte*>(address), bytes));
}

LoadCounters::LoadCounters(UniqueFd fd, std::span<std::byte> memory)
    : fd_(std::move(fd)), memory_(memory) {
  const auto slots = static_cast<uint32_t>(memory.size() / kSlotBytes);
  for (uint32_t slot = slots / 2; slot < slots; ++slot) {
    free_.push_back({.offset = slot * kSlotBytes});
  }
}

LoadCounters::~LoadCounters() {
  // Streams that still wait must not wait for memory that is gone.
  ReleaseAll();
  streams_.clear();
  ::munmap(memory_.data(), memory_.size());
}

bool LoadCounters::Holds(const wire::LoadCounter& counter) const {
  return counter.offset % sizeof(uint32_t) == 0 &&
         counter.offset <= memory_.size() - sizeof(uint32_t);
}

uint32_t LoadCounters::Done(const wire::LoadCounter& counter) const {
  uint32_t& word = words()[counter.offset / sizeof(uint32_t)];
  return std::atomic_ref(word).load(std::memory_order_acquire) - counter.base;
}

std::optional<wire::LoadCounter> LoadCounters::Take(uint32_t steps) {
  const std::lock_guard lock(mutex_);
  if (free_.empty() || !last_words_.empty()) return std::nullopt;
  wire::LoadCounter counter = free_.front();
  free_.pop_front();
  counter.steps = steps;
  Set(counter, 0);
  return counter;
}

void LoadCounters::Set(const wire::LoadCounter& counter, uint32_t done) {
  uint32_t& word = words()[counter.offset / sizeof(uint32_t)];
  std::atomic_ref(word).store(counter.base + done, std::memory_order_release);
}

// The next base is beyond all that the daemon may still write for this one.
void LoadCounters::GiveBack(const wire::LoadCounter& counter) {
  const std::lock_guard lock(mutex_);
  free_.push_back({.offset = counter.offset, .base = counter.base + counter.steps + 2});
}

Status LoadCounters::WaitOnStream(const wire::LoadCounter& counter, uint32_t done, int ordinal,
                                  void* stream) {
  std::shared_ptr<StreamWaits> waits;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<StreamWaits>& known = streams_[ordinal];
    if (!known) {
      KVT_ASSIGN_OR_RETURN(known, StreamWaits::Open(fd_.get(), memory_.size(), ordinal));
    }
    waits = known;
  }
  return waits->Wait(stream, counter.offset, counter.base + done);
}

void LoadCounters::ReleaseAll() {
  const std::lock_guard lock(mutex_);
  const std::span<uint32_t> all = words();
  if (last_words_.empty()) {
    for (uint32_t& word : all) {
      last_words_.push_back(std::atomic_ref(word).load(std::memory_order_relaxed) + kReleasedBy);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    std::atomic_ref(all[i]).store(last_words_[i], std::memory_order_release);
  }
}

bool CounterPace::Pause() const {
  const auto waited = std::chrono::steady_clock::now() - start_;
  if (waited >= kShortSleeps) return false;
  if (waited >= kSpin) {
    (void)::nanosleep(&kShortSleep, nullptr);
    return true;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  return true;
}

Result<std::unique_ptr<LossWatch>> LossWatch::Start(int socket, std::function<void()> on_lost) {
  KVT_ASSIGN_OR_RETURN(UniqueFd stop, OpenEvent(0));
  std::unique_ptr<LossWatch> started(new LossWatch(socket, std::move(on_lost), std::move(stop)));
  LossWatch* const watch = started.get();
  KVT_ASSIGN_OR_RETURN(started->thread_,
                       StartOwnThread("kvt-loss-watch", [watch] { watch->Watch(); }));
  return started;
}

LossWatch::~LossWatch() {
  if (!thread_.joinable()) return;
  SignalEvent(stop_.get());
  thread_.join();
}

void LossWatch::Watch() {
  pollfd fds[] = {{socket_, POLLRDHUP, 0}, {stop_.get(), POLLIN, 0}};
  while (fds[0].revents == 0 && fds[1].revents == 0) (void)::poll(fds, 2, -1);
  if (fds[1].revents != 0) return;
  for (int i = 0; i < kRepetitions; ++i) {
    on_lost_();
    if (StoppedWithin(kPauseMs)) return;
  }
}

bool LossWatch::StoppedWithin(int ms) const {
  pollfd fd{stop_.get(), POLLIN, 0};
  return ::poll(&fd, 1, ms) > 0;
}

}  // namespace kvtier::client
