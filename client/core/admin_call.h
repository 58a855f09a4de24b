// SPDX-License-Identifier: Apache-2.0
// One call to the daemon's admin socket.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace kvtier::client {

// Sends `request_json` and returns the reply's text; `progress` sees the messages in between, in
// order, on this thread. Waits up to `timeout_ms` for each message. Errors: those of
// ConnectUnixSocket; the daemon's refusal; kUnavailable; kTimeout; kLimitExceeded "text_too_long".
[[nodiscard]] Result<std::string> CallAdmin(
    const std::string& socket_path, const std::string& request_json, int64_t timeout_ms,
    const std::function<void(const std::string& json)>& progress);

}  // namespace kvtier::client
