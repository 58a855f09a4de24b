// SPDX-License-Identifier: Apache-2.0
// Memory files that may outlive the process: they are sealed, so that no other process that holds
// the descriptor can cut the memory under the daemon.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/digest.h"
#include "base/posix.h"
#include "base/result.h"

namespace kvtier {

// Some deaths are chance. A daemon that dies of what it finds would do so for ever; this many are
// fewer than systemd allows in a minute. A daemon that finds so many begins empty.
inline constexpr uint32_t kMaxUnfinishedAdoptions = 5;

// All zeros. Errors: kResourceExhausted or kUnsupported with the errno's name.
[[nodiscard]] Result<UniqueFd> MakeKeptFile(const char* name, uint64_t bytes);
// Why the descriptor is not of such memory of this size: "not_sealed", "size_changed" or the
// errno's name; nothing if it is.
[[nodiscard]] std::optional<std::string> KeptFileRefusal(int fd, uint64_t bytes);
// Its length; 0 if the kernel does not tell.
[[nodiscard]] uint64_t FileBytes(int fd);
// A memory file's number is its own as long as it is held; it ties a table to its memory.
[[nodiscard]] uint64_t FileNumber(int fd);
// Of the machine. Zeros if the kernel does not tell: memory of another boot cannot be there in any
// case.
[[nodiscard]] Digest128 ReadBootId();

}  // namespace kvtier
