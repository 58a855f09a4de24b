// SPDX-License-Identifier: Apache-2.0
// What a daemon under measurement says of itself.
#pragma once

#include <boost/json/value.hpp>
#include <string>

#include "base/result.h"

namespace kvtier {

// The document that `kvtierctl status --json` shows; read it with JsonView. Include from .cc files
// only. Errors: those of asking; kCorrupt "bad_status".
[[nodiscard]] Result<boost::json::value> AskStatus(const std::string& admin_socket);

}  // namespace kvtier
