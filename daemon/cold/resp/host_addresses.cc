// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/resp/host_addresses.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/posix.h"

namespace kvtier {

// The thread shares it.
struct HostAddresses::State {
  const std::string host;
  const Resolve resolve;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool is_asking = false;
  bool is_interrupted = false;
  std::optional<Found> found;  // that no call has taken yet

  State(std::string name, Resolve by) : host(std::move(name)), resolve(std::move(by)) {}

  void Ask() {
    BlockAllSignals();
    Found answer = resolve(host);
    const std::lock_guard lock(mutex);
    found = std::move(answer);
    is_asking = false;
    changed.notify_all();
  }
  [[nodiscard]] static bool Start(const std::shared_ptr<State>& state) {
    try {
      std::thread([state] { state->Ask(); }).detach();
    } catch (const std::system_error&) {
      return false;
    }
    return true;
  }
};

HostAddresses::HostAddresses(std::string host, Resolve resolve)
    : state_(std::make_shared<State>(std::move(host), std::move(resolve))) {}

HostAddresses::~HostAddresses() { Interrupt(); }

HostAddresses::Found HostAddresses::Find(std::chrono::milliseconds patience) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (!state.found && !state.is_asking && !state.is_interrupted) {
    state.is_asking = State::Start(state_);
    if (!state.is_asking) return {.addresses = {}, .error = "no thread to ask a name server"};
  }
  state.changed.wait_for(lock, patience, [&] { return state.found || state.is_interrupted; });
  if (state.is_interrupted) return {.addresses = {}, .error = "the store is being closed"};
  if (!state.found) return {.addresses = {}, .error = "the name server does not answer"};
  return *std::exchange(state.found, std::nullopt);
}

void HostAddresses::Interrupt() {
  const std::lock_guard lock(state_->mutex);
  state_->is_interrupted = true;
  state_->changed.notify_all();
}

HostAddresses::Found HostAddresses::ResolveBySystem(const std::string& host) {
  Found answer;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (failed != 0) {
    answer.error = host + ": " + (failed == EAI_SYSTEM ? ErrnoName(errno) : ::gai_strerror(failed));
    return answer;
  }
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
      std::array<char, NI_MAXHOST> text{};
      if (one->ai_family != family) continue;
      if (::getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0,
                        NI_NUMERICHOST) == 0) {
        answer.addresses.emplace_back(text.data());
      }
    }
  }
  ::freeaddrinfo(list);
  if (answer.addresses.empty()) answer.error = host + ": no address";
  return answer;
}

}  // namespace kvtier
