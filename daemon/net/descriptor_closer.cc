// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/descriptor_closer.h"

#include <linux/sockios.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "daemon/net/linger_breaker.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A thread that has been on one descriptor for so long hangs, or frees much memory: others of the
// same sender need not wait for it.
constexpr auto kPatience = std::chrono::milliseconds(100);

// A descriptor travels with at least one byte, and nothing arrives any more after the shutdown.
bool HoldsNothing(int socket) {
  int bytes = 0;
  return ::shutdown(socket, SHUT_RDWR) == 0 && ::ioctl(socket, SIOCINQ, &bytes) == 0 && bytes == 0;
}

}  // namespace

// Shared with the threads, which may outlive the closer.
struct DescriptorCloser::State {
  explicit State(CloseCall close_call) : close(std::move(close_call)) {}

  enum class Kind : bool { kSent, kSocket };
  using LaneName = std::pair<Kind, std::string>;
  struct Lane {
    std::deque<UniqueFd> queued;
    size_t closing = 0;  // by threads, one each
    size_t threads = 0;
    SteadyClock::time_point last_taken;  // from the queue

    [[nodiscard]] size_t pending() const { return queued.size() + closing; }
  };

  // Closes the lane's descriptors until there are no more. The lane goes with its last thread.
  static void Run(const std::shared_ptr<State>& state, const LaneName& name) {
    std::unique_lock lock(state->mutex);
    const auto place = state->lanes.find(name);
    Lane& lane = place->second;
    while (!lane.queued.empty()) {
      UniqueFd descriptor = std::move(lane.queued.front());
      lane.queued.pop_front();
      lane.last_taken = SteadyClock::now();
      ++lane.closing;
      // The lock is not held during close(), which may hang; Close must stay quick for the event
      // loop.
      lock.unlock();
      state->close(std::move(descriptor));
      lock.lock();
      --lane.closing;
    }
    if (--lane.threads == 0) state->lanes.erase(place);
  }

  void Add(const std::shared_ptr<State>& self, UniqueFd descriptor, LaneName name) {
    const std::lock_guard lock(mutex);
    Lane& lane = lanes[name];
    lane.queued.push_back(std::move(descriptor));
    const bool stuck = SteadyClock::now() - lane.last_taken > kPatience;
    if (lane.threads == 0) lane.last_taken = SteadyClock::now();
    const bool wants_thread = lane.threads == 0 || (stuck && lane.threads < kMaxClosersPerSender);
    if (!wants_thread) return;
    try {
      std::thread thread([self, name = std::move(name)] { Run(self, name); });
      pthread_setname_np(thread.native_handle(), "kvt-close");
      thread.detach();
      ++lane.threads;
    } catch (const std::system_error&) {
      // The next call tries again; until then the descriptors stay open.
    }
  }

  const CloseCall close;
  mutable std::mutex mutex;
  std::map<LaneName, Lane> lanes;
};

DescriptorCloser::DescriptorCloser(CloseCall close)
    : state_(std::make_shared<State>(std::move(close))) {}

DescriptorCloser::~DescriptorCloser() = default;

// Without SO_LINGER the kernel sends unsent data after close() has returned. The peer that gave us
// the descriptor asked for the wait, and we owe it none. The call fails harmlessly for anything but
// a socket, and does nothing for a socket that is within another.
void DescriptorCloser::CloseLingering(UniqueFd descriptor) {
  const linger off{};
  (void)::setsockopt(descriptor.get(), SOL_SOCKET, SO_LINGER, &off, sizeof(off));
  const LingerBreaker breaker;
  descriptor.Reset();
}

void DescriptorCloser::Close(UniqueFd descriptor, const std::string& sender) {
  if (descriptor.valid()) state_->Add(state_, std::move(descriptor), {State::Kind::kSent, sender});
}

std::function<void(UniqueFd)> DescriptorCloser::CloseFor(const std::string& sender) const {
  return [state = state_, sender](UniqueFd descriptor) {
    if (descriptor.valid()) state->Add(state, std::move(descriptor), {State::Kind::kSent, sender});
  };
}

void DescriptorCloser::CloseSocket(UniqueFd socket, const std::string& peer) {
  if (!socket.valid() || HoldsNothing(socket.get())) return;
  state_->Add(state_, std::move(socket), {State::Kind::kSocket, peer});
}

size_t DescriptorCloser::pending(const std::string& sender) const {
  const std::lock_guard lock(state_->mutex);
  const auto lane = state_->lanes.find({State::Kind::kSent, sender});
  return lane == state_->lanes.end() ? 0 : lane->second.pending();
}

size_t DescriptorCloser::pending() const {
  const std::lock_guard lock(state_->mutex);
  size_t pending = 0;
  for (const auto& [name, lane] : state_->lanes) pending += lane.pending();
  return pending;
}

}  // namespace kvtier
