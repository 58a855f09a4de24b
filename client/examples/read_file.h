// SPDX-License-Identifier: Apache-2.0
// Whole files of bounded size.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace kvtier::generate {

// Errors: kNotFound, kIoError; kLimitExceeded "file_too_large".
[[nodiscard]] Result<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace kvtier::generate
