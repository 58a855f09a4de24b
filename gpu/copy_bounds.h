// SPDX-License-Identifier: Apache-2.0
// What every device checks before it copies.
#pragma once

#include "base/result.h"
#include "gpu/device.h"

namespace kvtier {

// Errors: kInvalidArgument "copy_out_of_bounds" if a copy does not lie within the request's pool.
[[nodiscard]] Status CheckCopyBounds(const CopyRequest& request);

}  // namespace kvtier
