// SPDX-License-Identifier: Apache-2.0
// What kvtierctl tells the shell. Stable: scripts depend on the numbers.
#pragma once

#include "base/error.h"

namespace kvtier {

enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 3,
  kNotFound = 4,
  kIntegrity = 5,  // bytes that are not what they should be
  kTimeout = 6,
  kPermission = 7,
  kPartial = 8,  // done, but not all of it
};

[[nodiscard]] ExitCode ExitCodeOf(ErrorCode code);

}  // namespace kvtier
