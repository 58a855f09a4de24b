// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <fmt/format.h>

namespace kvtier {

// A switch and not a table of enum_names.h: this file, below all others, includes none of them.
std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kStaleHandle:
      return "stale_handle";
    case ErrorCode::kNotOwner:
      return "not_owner";
    case ErrorCode::kWrongState:
      return "wrong_state";
    case ErrorCode::kLimitExceeded:
      return "limit_exceeded";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kIoError:
      return "io_error";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string Error::ToString() const {
  if (context.empty()) return fmt::format("{}: {}", ErrorCodeName(code), reason);
  return fmt::format("{}: {} ({})", ErrorCodeName(code), reason, context);
}

}  // namespace kvtier
