// SPDX-License-Identifier: Apache-2.0
// How the library starts a thread in an application's process.
#pragma once

#include <functional>
#include <thread>

#include "base/posix.h"
#include "base/result.h"

namespace kvtier::client {

// The thread takes none of the application's signals. `name` is shown by ps and debuggers, and has
// at most 15 bytes. Errors: kResourceExhausted "no_thread".
[[nodiscard]] Result<std::thread> StartOwnThread(const char* name, std::function<void()> body);
// An eventfd, with which such a thread is told something. Errors: kResourceExhausted
// "no_descriptor".
[[nodiscard]] Result<UniqueFd> OpenEvent(int flags);
// Does nothing for -1.
void SignalEvent(int event);

}  // namespace kvtier::client
