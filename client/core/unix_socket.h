// SPDX-License-Identifier: Apache-2.0
// Connecting to a Unix stream socket, and the points in time until which a call may wait for it.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <string>

#include "base/posix.h"
#include "base/result.h"

namespace kvtier::client {

using Deadline = std::chrono::steady_clock::time_point;

// Longer waits are cut to this, so that sums do not overflow.
inline constexpr int64_t kMaxTimeoutMs = int64_t{365} * 24 * 60 * 60 * 1000;

// REQUIRES: timeout_ms >= 0.
[[nodiscard]] inline Deadline DeadlineIn(int64_t timeout_ms) {
  return std::chrono::steady_clock::now() +
         std::chrono::milliseconds(std::min(timeout_ms, kMaxTimeoutMs));
}

// The timeout for poll(2): rounded up, so that it does not return before the deadline; 0 once
// passed.
[[nodiscard]] inline int PollTimeoutMs(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
}

// Connects and returns a non-blocking, close-on-exec socket with buffers as large as the system
// allows. Errors: kInvalidArgument "bad_socket_path", kUnavailable "no_daemon", kPermissionDenied
// "socket_permission", kTimeout "connect_timeout", kIoError "connect_failed".
[[nodiscard]] Result<UniqueFd> ConnectUnixSocket(const std::string& path, Deadline deadline);

}  // namespace kvtier::client
