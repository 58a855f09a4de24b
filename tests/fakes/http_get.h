// SPDX-License-Identifier: Apache-2.0
// A web client for tests: one request, one connection.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvtier {

struct HttpReply {
  unsigned status = 0;  // 0: no answer
  std::string content_type;
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// `url` is "http://127.0.0.1:9400/path". `headers` replace those that would be sent.
[[nodiscard]] HttpReply HttpGet(const std::string& url, const HttpHeaders& headers = {},
                                const std::string& method = "GET");

}  // namespace kvtier
