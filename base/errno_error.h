// SPDX-License-Identifier: Apache-2.0
// Errors of system calls, by the errno's name.
#pragma once

#include <cstring>
#include <string>

#include "base/result.h"

namespace kvtier {

// "ENOSPC", "EIO"; "E<number>" for one without a name.
[[nodiscard]] inline std::string ErrnoName(int error_number) {
  const char* name = ::strerrorname_np(error_number);
  return name != nullptr ? name : "E" + std::to_string(error_number);
}

// `context` says what was attempted on what; the errno's text is added to it.
[[nodiscard]] inline Error ErrnoError(ErrorCode code, int error_number, std::string context) {
  const char* text = ::strerrordesc_np(error_number);
  if (text != nullptr) context.append(": ").append(text);
  return Error{code, ErrnoName(error_number), std::move(context)};
}

}  // namespace kvtier
