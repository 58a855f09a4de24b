// SPDX-License-Identifier: Apache-2.0
// Memory files: memory that processes share by a descriptor, and that lives for as long as one of
// them holds it. They are sealed: no process that holds the descriptor can cut the memory under
// another that has mapped it, which would end that one with SIGBUS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/digest.h"
#include "base/posix.h"
#include "base/result.h"

namespace kvtier {

// All zeros, and of this size for good. `name` shows in /proc alone. Errors: kResourceExhausted or
// kUnsupported with the errno's name.
[[nodiscard]] Result<UniqueFd> MakeMemoryFile(const char* name, uint64_t bytes);
// Why the descriptor is not of such memory of this size: "not_sealed", "size_changed" or the
// errno's name; nothing if it is. It cannot block, whatever the descriptor is of.
[[nodiscard]] std::optional<std::string> MemoryFileRefusal(int fd, uint64_t bytes);
// A file's length; 0 if the kernel does not tell.
[[nodiscard]] uint64_t FileBytes(int fd);
// A memory file's number is its own as long as it is held; it ties a table to its memory. 0 if the
// kernel does not tell.
[[nodiscard]] uint64_t FileNumber(int fd);
// The number of the machine's boot, which no memory outlives. Zeros if the kernel does not tell.
[[nodiscard]] Digest128 ReadBootId();

}  // namespace kvtier
