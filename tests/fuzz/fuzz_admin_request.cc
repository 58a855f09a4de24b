// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: texts of the admin socket through ParseAdminRequest.
//
// Checked besides memory safety: an accepted request lies within the bounds that its header
// promises, and written as JSON again it is accepted as the same.
#include <boost/json/src.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "daemon/admin/admin_request.h"

namespace kvtier {
namespace {

namespace json = boost::json;

std::string Written(const AdminRequestBody& request) {
  json::object object{{"op", request.op},
                      {"timeout_ms", request.timeout_ms},
                      {"cursor", request.cursor},
                      {"limit", request.limit},
                      {"since_ms", request.since_ms},
                      {"without_proof", request.without_proof}};
  for (const auto& [name, text] :
       {std::pair("tenant", &request.tenant), std::pair("model", &request.model),
        std::pair("epoch", &request.epoch), std::pair("prefix", &request.prefix)}) {
    if (!text->empty()) object[name] = *text;
  }
  if (request.ttl_ms) object["ttl_ms"] = *request.ttl_ms;
  if (request.before_ms) object["before_ms"] = *request.before_ms;
  constexpr const char* kTiers[] = {"pool", "host", "disk"};
  if (request.tier) object["tier"] = kTiers[static_cast<size_t>(*request.tier)];
  json::array hashes;
  for (const BlockHash& hash : request.hashes) hashes.emplace_back(hash.Hex());
  object["hashes"] = std::move(hashes);
  return json::serialize(object);
}

void CheckBounds(const AdminRequestBody& request) {
  KVT_CHECK(request.timeout_ms >= 0 && request.timeout_ms <= kMaxSettleTimeoutMs);
  KVT_CHECK(request.since_ms >= 0 && request.since_ms <= kMaxTraceSinceMs);
  KVT_CHECK(request.ttl_ms.value_or(0) >= 0 && request.before_ms.value_or(0) >= 0);
  KVT_CHECK(request.limit <= kMaxListedBlocks);
  KVT_CHECK(request.cursor <= INT64_MAX);
}

}  // namespace
}  // namespace kvtier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtier;
  const auto request = ParseAdminRequest({reinterpret_cast<const char*>(data), size});
  if (!request.has_value()) {
    KVT_CHECK(request.error().code == ErrorCode::kInvalidArgument);
    return 0;
  }
  CheckBounds(*request);
  const std::string written = Written(*request);
  const auto again = ParseAdminRequest(written);
  KVT_CHECK(again.has_value() && Written(*again) == written);
  return 0;
}
