// SPDX-License-Identifier: Apache-2.0
// The session's counter page: how far the daemon and its devices have come with loads, seen without
// asking; and the watch that ends all waits for it when the daemon is gone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "client/cuda/stream_waits.h"
#include "protocol/messages.h"

namespace kvtier::client {

// Thread-safe.
class LoadCounters {
 public:
  // Errors: kCorrupt "counters_missing"; kIoError "counters_map_failed".
  [[nodiscard]] static Result<std::shared_ptr<LoadCounters>> Map(UniqueFd fd);
  LoadCounters(UniqueFd fd, std::span<std::byte> memory);
  ~LoadCounters();
  LoadCounters(const LoadCounters&) = delete;
  LoadCounters& operator=(const LoadCounters&) = delete;

  // Whether the counter lies in the page. REQUIRED by those below.
  [[nodiscard]] bool Holds(const wire::LoadCounter& counter) const;
  // The steps that are done; more than there are when the load has ended, or the session.
  [[nodiscard]] uint32_t Done(const wire::LoadCounter& counter) const;

  // A counter for a request that names its own, which stands at 0 until the daemon counts; nothing
  // if all are in use. It is the request's until it is given back, after which it may still be
  // read: it stands beyond its steps once it is another's.
  [[nodiscard]] std::optional<wire::LoadCounter> Take(uint32_t steps);
  void GiveBack(const wire::LoadCounter& counter);

  // Lets a taken counter stand at so many steps, as the daemon does.
  void Set(const wire::LoadCounter& counter, uint32_t done);

  // Has a stream of the GPU wait until so many steps are done, or the load or the session has
  // ended. Errors: those of StreamWaits.
  [[nodiscard]] Status WaitOnStream(const wire::LoadCounter& counter, uint32_t done, int ordinal,
                                    void* stream);
  // The session is over and nothing counts any more: every wait, of any stream, ends. May be called
  // again, in case a device of the daemon wrote meanwhile.
  void ReleaseAll();

 private:
  [[nodiscard]] std::span<uint32_t> words() const {
    return {reinterpret_cast<uint32_t*>(memory_.data()), memory_.size() / sizeof(uint32_t)};
  }

  const UniqueFd fd_;
  const std::span<std::byte> memory_;
  std::mutex mutex_;
  // Guarded by mutex_: by ordinal, and what each word is set to in the end.
  std::map<int, std::shared_ptr<StreamWaits>> streams_;
  std::vector<uint32_t> last_words_;
  // Slots that requests of this side may name and the bases that they count from next. The one
  // given back last is taken last, since the daemon may need a moment to be done with it. Guarded
  // by mutex_.
  std::deque<wire::LoadCounter> free_;
};

// Paces a thread that looks at a counter again and again.
class CounterPace {
 public:
  // Pauses, the longer the later: without sleep for the time of a short load, then 20 us (the
  // kernel makes 70 of them) for that of a long one from host memory. False, at once, after that:
  // now a millisecond's wait for events is of no matter.
  [[nodiscard]] bool Pause() const;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// One thread, for sessions with streams, or callers, that look at counters alone.
class LossWatch {
 public:
  // Calls `on_lost` when the socket has been hung up, and for a second again and again: a device of
  // the daemon may still finish work that it had begun. `socket` outlives the object. Errors: those
  // of OpenEvent and StartOwnThread.
  [[nodiscard]] static Result<std::unique_ptr<LossWatch>> Start(int socket,
                                                                std::function<void()> on_lost);
  // Waits for a call under way.
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

 private:
  LossWatch(int socket, std::function<void()> on_lost, UniqueFd stop)
      : socket_(socket), on_lost_(std::move(on_lost)), stop_(std::move(stop)) {}

  void Watch();
  // True if it is time to go.
  [[nodiscard]] bool StoppedWithin(int ms) const;

  const int socket_;
  const std::function<void()> on_lost_;
  const UniqueFd stop_;  // an eventfd
  std::thread thread_;   // none until Start has succeeded
};

}  // namespace kvtier::client
