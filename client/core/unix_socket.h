// SPDX-License-Identifier: Apache-2.0
// Connecting to a Unix stream socket.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "client/core/deadline.h"

namespace kvtier::client {

// Connects and returns a non-blocking, close-on-exec socket with buffers as large as the system
// allows. Errors: kInvalidArgument "bad_socket_path", kUnavailable "no_daemon", kPermissionDenied
// "socket_permission", kTimeout "connect_timeout", kIoError "connect_failed".
[[nodiscard]] Result<UniqueFd> ConnectUnixSocket(const std::string& path, Deadline deadline);

}  // namespace kvtier::client
