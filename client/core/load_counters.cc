// SPDX-License-Identifier: Apache-2.0
#include "client/core/load_counters.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace kvtier::client {
namespace {

// More memory than this is no counter page.
constexpr int64_t kMaxPageBytes = 1 << 20;
// Beyond whatever is waited for: streams compare the difference as a signed number.
constexpr uint32_t kReleasedBy = 1u << 30;

constexpr int kRepetitions = 20;
constexpr int kPauseMs = 50;

}  // namespace

Result<std::shared_ptr<LoadCounters>> LoadCounters::Map(UniqueFd fd) {
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || status.st_size <= 0 ||
      status.st_size > kMaxPageBytes) {
    return MakeError(ErrorCode::kCorrupt, "counters_missing");
  }
  const auto bytes = static_cast<size_t>(status.st_size);
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    return MakeError(ErrorCode::kIoError, "counters_map_failed", std::strerror(errno));
  }
  return std::make_shared<LoadCounters>(std::move(fd),
                                        std::span(static_cast<std::byte*>(address), bytes));
}

LoadCounters::LoadCounters(UniqueFd fd, std::span<std::byte> memory)
    : fd_(std::move(fd)), memory_(memory) {}

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

LossWatch::LossWatch(int socket, std::function<void()> on_lost)
    : socket_(socket), on_lost_(std::move(on_lost)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  // The application's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Watch(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "kvt-loss-watch");
}

LossWatch::~LossWatch() {
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
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
