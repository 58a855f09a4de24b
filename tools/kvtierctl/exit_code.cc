// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/exit_code.h"

namespace kvtier {

ExitCode ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return ExitCode::kUsage;
    case ErrorCode::kNotFound:
      return ExitCode::kNotFound;
    case ErrorCode::kPermissionDenied:
      return ExitCode::kPermission;
    case ErrorCode::kUnavailable:
      return ExitCode::kUnreachable;
    case ErrorCode::kCorrupt:
      return ExitCode::kIntegrity;
    case ErrorCode::kTimeout:
      return ExitCode::kTimeout;
    default:
      return ExitCode::kFailed;
  }
}

}  // namespace kvtier
