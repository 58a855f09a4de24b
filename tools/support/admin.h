// SPDX-License-Identifier: Apache-2.0
// Requests to the daemon's admin socket.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvtier {

// Called with the JSON text of each message that comes before the reply.
using AdminProgress = std::function<void(std::string_view json)>;

// Sends a JSON request and returns the JSON reply. The daemon may be silent for `silence_ms` at
// most. Errors: kUnavailable when no daemon listens, kTimeout, and the daemon's refusals as they
// are.
[[nodiscard]] Result<std::string> CallAdmin(const std::string& admin_socket,
                                            const std::string& request_json, int64_t silence_ms,
                                            const AdminProgress& progress = {});

}  // namespace kvtier
