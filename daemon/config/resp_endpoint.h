// SPDX-License-Identifier: Apache-2.0
// Where a server is that speaks RESP.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvtier {

struct RespEndpoint {
  std::string host;  // or, without a port, a path
  int port = 0;
  std::string user;
  std::string password;

  // "HOST:PORT", "[ADDRESS]:PORT" or an absolute path; nothing if it is none of these.
  [[nodiscard]] static std::optional<RespEndpoint> Parse(std::string_view text);
};

}  // namespace kvtier
