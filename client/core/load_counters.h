// SPDX-License-Identifier: Apache-2.0
// The session's counter page: how far the daemon and its devices have come with loads, seen without
// asking; and the watch that ends all waits for it when the daemon is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
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
};

// One thread, for sessions that have streams waiting.
class LossWatch {
 public:
  // Calls `on_lost` when the socket has been hung up, and for a second again and again: a device of
  // the daemon may finish what it had begun. `socket` outlives this object.
  LossWatch(int socket, std::function<void()> on_lost);
  // Waits for a call under way.
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

 private:
  void Watch();
  // True if it is time to go.
  [[nodiscard]] bool StoppedWithin(int ms) const;

  const int socket_;
  const std::function<void()> on_lost_;
  const UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace kvtier::client
