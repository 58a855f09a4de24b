// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/descriptor_closer.h"

#include <pthread.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace kvtier {
namespace {

// Without SO_LINGER the kernel sends what is unsent after close() has returned. The peer that gave
// us the descriptor asked for the wait, and we owe it none. Fails harmlessly for anything but a
// socket.
void DisableLinger(int descriptor) {
  const linger off{};
  (void)::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
}

}  // namespace

// Shared with the thread, which may outlive the closer.
struct DescriptorCloser::State {
  // Closes what is queued until the closer has gone.
  static void Run(const std::shared_ptr<State>& state) {
    std::unique_lock lock(state->mutex);
    while (true) {
      state->wake.wait(lock, [&] { return state->ended || !state->queued.empty(); });
      if (state->queued.empty()) return;
      // The lock is not held during close(), which may hang; Close must stay quick for the event
      // loop.
      std::vector<UniqueFd> closing = std::exchange(state->queued, {});
      lock.unlock();
      for (UniqueFd& descriptor : closing) {
        DisableLinger(descriptor.get());
        descriptor.Reset();
        const std::lock_guard counting(state->mutex);
        // Counted down one by one: those closed before a descriptor that hangs must not count as
        // pending.
        --state->pending;
      }
      closing.clear();
      lock.lock();
    }
  }

  std::mutex mutex;
  std::condition_variable wake;
  std::vector<UniqueFd> queued;
  size_t pending = 0;
  bool started = false;
  bool ended = false;
};

DescriptorCloser::DescriptorCloser() : state_(std::make_shared<State>()) {}

DescriptorCloser::~DescriptorCloser() {
  const std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->wake.notify_all();
}

void DescriptorCloser::Close(UniqueFd descriptor) {
  if (!descriptor.valid()) return;
  const std::lock_guard lock(state_->mutex);
  state_->queued.push_back(std::move(descriptor));
  ++state_->pending;
  if (!state_->started) {
    try {
      std::thread thread([state = state_] { State::Run(state); });
      pthread_setname_np(thread.native_handle(), "kvt-close");
      thread.detach();
      state_->started = true;
    } catch (const std::system_error&) {
      // The next call tries again; until then the descriptors stay open.
    }
  }
  state_->wake.notify_one();
}

size_t DescriptorCloser::pending() const {
  const std::lock_guard lock(state_->mutex);
  return state_->pending;
}

}  // namespace kvtier
