// SPDX-License-Identifier: Apache-2.0
// How the library starts a thread in an application's process.
#pragma once

#include <functional>
#include <thread>

namespace kvtier::client {

// The thread takes none of the application's signals. `name` is shown by ps and debuggers, and has
// at most 15 bytes.
[[nodiscard]] std::thread StartOwnThread(const char* name, std::function<void()> body);

}  // namespace kvtier::client
