// SPDX-License-Identifier: Apache-2.0
// Copies from and to mapped memory that its owner, another process, may cut at any time. Internal
// to gpu/.
#pragma once

#include <cstddef>
#include <span>

namespace kvtier {

// Does what FastCopy does. Returns false if the mapping has no page where `from` or `to` lie in it
// (SIGBUS); a part may have been copied then. Any thread.
//
// The first call installs a handler of SIGBUS. Faults anywhere else, and signals that are sent, do
// what they did before. REQUIRES: the thread has not blocked SIGBUS.
[[nodiscard]] bool GuardedCopy(void* to, const void* from, size_t bytes,
                               std::span<const std::byte> mapping);

}  // namespace kvtier
