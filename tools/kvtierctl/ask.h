// SPDX-License-Identifier: Apache-2.0
// Questions to the daemon's admin socket. Include from .cc files only.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/json_view.h"

namespace kvtier {

// A document of this project, which names its schema. Errors: kCorrupt "bad_reply".
[[nodiscard]] Result<boost::json::value> ParseReply(const std::string& reply);

// The daemon's reply. Errors: those of the call and of ParseReply.
[[nodiscard]] Result<boost::json::value> Ask(const CommandContext& context,
                                             const boost::json::object& request,
                                             const AdminProgress& progress = {});
// The same of a request without arguments.
[[nodiscard]] inline Result<boost::json::value> Ask(const CommandContext& context,
                                                    std::string_view operation,
                                                    const AdminProgress& progress = {}) {
  return Ask(context, boost::json::object{{"op", operation}}, progress);
}

}  // namespace kvtier
