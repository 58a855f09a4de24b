// SPDX-License-Identifier: Apache-2.0
#include "client/examples/report.h"

#include <boost/json.hpp>

namespace kvtier::generate {
namespace {

std::string ToUtf8(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xC0 | byte >> 6));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3F)));
    }
  }
  return text;
}

}  // namespace

std::string ToJson(const Generation& generation) {
  const boost::json::object report{
      {"schema", "kvtier.generate/1"},
      {"text", ToUtf8(generation.text)},
      {"prompt_tokens", generation.prompt_tokens},
      {"cached_tokens", generation.cached.total()},
      {"prefilled_tokens", generation.prefilled_tokens},
      {"tiers",
       {{"pool", generation.cached.pool},
        {"host", generation.cached.host},
        {"disk", generation.cached.disk}}},
      {"ttft_ms", generation.first_token_ms.count()},
      {"total_ms", generation.total_ms.count()},
  };
  return boost::json::serialize(report);
}

}  // namespace kvtier::generate
