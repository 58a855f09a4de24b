// SPDX-License-Identifier: Apache-2.0
// The parts of libkvtier that tools use besides pools: its errors as this project's own, and
// requests to the daemon's admin socket.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kvtier/kvtier_result.hpp"

namespace kvtier {

// The codes are the same by definition of the C ABI.
[[nodiscard]] inline tl::unexpected<Error> FromClient(const kvt::Error& error) {
  return MakeError(static_cast<ErrorCode>(error.code), error.reason, error.context);
}

// Called with the JSON text of each message that comes before the reply.
using AdminProgress = std::function<void(std::string_view json)>;

// Sends a JSON request and returns the JSON reply. The daemon may be silent for `silence_ms` at
// most. Errors: kUnavailable when no daemon listens, kTimeout, and the daemon's refusals as they
// are.
[[nodiscard]] Result<std::string> CallAdmin(const std::string& admin_socket,
                                            const std::string& request_json, int64_t silence_ms,
                                            const AdminProgress& progress = {});

}  // namespace kvtier
