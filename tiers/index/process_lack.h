// SPDX-License-Identifier: Apache-2.0
// A process that lacks descriptors or memory: neither a rebuild nor another directory helps it, and
// it would soon fail elsewhere.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/posix.h"
#include "base/result.h"

namespace kvtier {

// The errors of the system that say so.
inline constexpr std::array kProcessLacks = {EMFILE, ENFILE, ENOMEM};

// The error's reason is one of them, as ErrnoError names it.
[[nodiscard]] inline bool IsLackOfProcess(const Error& error) {
  return std::ranges::any_of(kProcessLacks,
                             [&](int number) { return error.reason == ErrnoName(number); });
}

}  // namespace kvtier
