// SPDX-License-Identifier: Apache-2.0
// The addresses that a host's name stands for. The system's call for that waits for name servers
// and cannot be ended, so that a thread makes it that may outlive its caller.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvtier {

// One thread, but for Interrupt.
class HostAddresses {
 public:
  struct Found {
    std::vector<std::string> addresses;  // in figures
    std::string error;                   // says why there are none
  };
  // On any thread; may hang.
  using Resolve = std::function<Found(const std::string& host)>;

  HostAddresses(std::string host, Resolve resolve);
  // Does not wait for a thread that hangs.
  ~HostAddresses();
  HostAddresses(const HostAddresses&) = delete;
  HostAddresses& operator=(const HostAddresses&) = delete;

  // Waits so long at most; an answer that comes later is the next call's. One thread hangs at most.
  [[nodiscard]] Found Find(std::chrono::milliseconds patience);
  // Ends a call that waits, and every later one. From any thread.
  void Interrupt();

  // By the system's resolver, IPv4 first.
  [[nodiscard]] static Found ResolveBySystem(const std::string& host);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace kvtier
