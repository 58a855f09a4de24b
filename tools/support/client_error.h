// SPDX-License-Identifier: Apache-2.0
// Errors of libkvtier as this project's own. The codes are the same by definition of the C ABI.
#pragma once

#include "base/result.h"
#include "kvtier/kvtier_result.hpp"

namespace kvtier {

[[nodiscard]] inline tl::unexpected<Error> FromClient(const kvt::Error& error) {
  return MakeError(static_cast<ErrorCode>(error.code), error.reason, error.context);
}

}  // namespace kvtier
