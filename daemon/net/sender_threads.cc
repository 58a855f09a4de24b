// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/sender_threads.h"

#include <pthread.h>

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A thread that has been on one call for so long hangs, or frees much memory: others of the same
// sender need not wait for it.
constexpr auto kPatience = std::chrono::milliseconds(100);

}  // namespace

// Shared with the threads, which may outlive the daemon's other parts.
struct SenderThreads::State {
  struct Queue {
    std::deque<std::function<void()>> calls;
    size_t running = 0;  // by threads, one each
    size_t threads = 0;
    SteadyClock::time_point last_taken;  // from the queue

    [[nodiscard]] size_t pending() const { return calls.size() + running; }
  };

  // Runs the lane's calls until there are no more. The lane goes with its last thread.
  static void Work(const std::shared_ptr<State>& state, const Lane& lane) {
    std::unique_lock lock(state->mutex);
    const auto place = state->lanes.find(lane);
    Queue& queue = place->second;
    while (!queue.calls.empty()) {
      std::function<void()> call = std::move(queue.calls.front());
      queue.calls.pop_front();
      queue.last_taken = SteadyClock::now();
      ++queue.running;
      // The lock is not held during the call, which may hang; Run must stay quick for the event
      // loop.
      lock.unlock();
      call();
      call = nullptr;
      lock.lock();
      --queue.running;
    }
    if (--queue.threads == 0) state->lanes.erase(place);
  }

  mutable std::mutex mutex;
  std::map<Lane, Queue> lanes;
};

SenderThreads::SenderThreads() : state_(std::make_shared<State>()) {}

void SenderThreads::Run(Lane lane, std::function<void()> call) const {
  const std::lock_guard lock(state_->mutex);
  State::Queue& queue = state_->lanes[lane];
  queue.calls.push_back(std::move(call));
  const bool stuck = SteadyClock::now() - queue.last_taken > kPatience;
  if (queue.threads == 0) queue.last_taken = SteadyClock::now();
  const bool wants_thread = queue.threads == 0 || (stuck && queue.threads < kMaxThreadsPerSender);
  if (!wants_thread) return;
  try {
    std::thread thread([state = state_, lane = std::move(lane)] { State::Work(state, lane); });
    pthread_setname_np(thread.native_handle(), "kvt-sender");
    thread.detach();
    ++queue.threads;
  } catch (const std::system_error&) {
    // The lane's next call tries again; until then this one waits.
  }
}

size_t SenderThreads::pending(const Lane& lane) const {
  const std::lock_guard lock(state_->mutex);
  const auto place = state_->lanes.find(lane);
  return place == state_->lanes.end() ? 0 : place->second.pending();
}

size_t SenderThreads::pending() const {
  const std::lock_guard lock(state_->mutex);
  size_t pending = 0;
  for (const auto& [lane, queue] : state_->lanes) pending += queue.pending();
  return pending;
}

struct LoopMail::Box {
  std::mutex mutex;
  EventQueue* loop = nullptr;  // null: closed
};

LoopMail::LoopMail(EventQueue* loop) : box_(std::make_shared<Box>()) { box_->loop = loop; }

void LoopMail::Post(std::function<void()> event) const {
  const std::lock_guard lock(box_->mutex);
  if (box_->loop != nullptr) box_->loop->Post(std::move(event));
}

void LoopMail::Close() const {
  const std::lock_guard lock(box_->mutex);
  box_->loop = nullptr;
}

}  // namespace kvtier
