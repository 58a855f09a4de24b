// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/resp_endpoint.h"

#include <charconv>
#include <system_error>

namespace kvtier {

std::optional<RespEndpoint> RespEndpoint::Parse(std::string_view text) {
  RespEndpoint endpoint;
  if (text.starts_with('/')) {
    endpoint.host = text;
    return endpoint;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  const bool whole = error == std::errc() && end == port.data() + port.size();
  if (!whole || host.empty() || endpoint.port < 1 || endpoint.port > 65535) return std::nullopt;
  endpoint.host = host;
  return endpoint;
}

}  // namespace kvtier
