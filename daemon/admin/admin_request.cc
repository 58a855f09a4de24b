// SPDX-License-Identifier: Apache-2.0
#include "daemon/admin/admin_request.h"

#include <fmt/format.h>

#include <boost/json.hpp>

namespace kvtier {
namespace {

namespace json = boost::json;

// An object that holds an array of strings needs two levels. The bound protects the parser's stack.
constexpr size_t kMaxDepth = 4;
constexpr size_t kMaxHashDigits = 64;

tl::unexpected<Error> BadRequest(std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_request", std::move(context));
}

// The Take functions check one member each. The text of an error continues the member's name, which
// ParseAdminRequest puts before it.
Status TakeInteger(const json::value& value, int64_t max, int64_t* out) {
  const int64_t* number = value.if_int64();
  if (number == nullptr) return BadRequest("must be an integer");
  if (*number < 0 || *number > max) return BadRequest(fmt::format("must be 0 to {}", max));
  *out = *number;
  return {};
}

Status TakeText(const json::value& value, std::string* out) {
  const json::string* text = value.if_string();
  if (text == nullptr) return BadRequest("must be a string");
  *out = *text;
  return {};
}

// A caller's name that is empty by mistake must not stand for every name.
Status TakeName(const json::value& value, std::string* out) {
  KVT_RETURN_IF_ERROR(TakeText(value, out));
  return out->empty() ? BadRequest("is empty: leave it out") : Status();
}

Status TakeFlag(const json::value& value, bool* out) {
  const bool* flag = value.if_bool();
  if (flag == nullptr) return BadRequest("must be true or false");
  *out = *flag;
  return {};
}

Status TakeTier(const json::value& value, AdminRequestBody* request) {
  std::optional<Tier>* const out = &request->tier;
  std::string name;
  KVT_RETURN_IF_ERROR(TakeText(value, &name));
  if (name == "pool") {
    *out = Tier::kPool;
  } else if (name == "host") {
    *out = Tier::kHost;
  } else if (name == "disk") {
    *out = Tier::kDisk;
  } else if (name == "cold") {
    request->cold = true;
  } else {
    return BadRequest("must be pool, host, disk or cold");
  }
  return {};
}

Status TakeHashes(const json::value& value, std::vector<BlockHash>* out) {
  const json::array* array = value.if_array();
  if (array == nullptr) return BadRequest("must be an array of hashes");
  for (const json::value& element : *array) {
    std::string text;
    KVT_RETURN_IF_ERROR(TakeText(element, &text));
    const auto hash = BlockHash::FromHex(text);
    if (!hash) {
      return BadRequest(fmt::format("a hash has {} hexadecimal digits", kMaxHashDigits));
    }
    out->push_back(*hash);
  }
  return {};
}

// An unknown member is an error: "tennant" must not silently evict the blocks of all tenants.
Status TakeMember(std::string_view name, const json::value& value, AdminRequestBody* request) {
  int64_t limit = 0;
  int64_t cursor = 0;
  if (name == "op") return TakeText(value, &request->op);
  if (name == "tenant") return TakeName(value, &request->tenant);
  if (name == "model") return TakeName(value, &request->model);
  if (name == "epoch") return TakeName(value, &request->epoch);
  if (name == "prefix") return TakeName(value, &request->prefix);
  if (name == "tier") return TakeTier(value, request);
  if (name == "hashes") return TakeHashes(value, &request->hashes);
  if (name == "all") return TakeFlag(value, &request->all);
  if (name == "release") return TakeFlag(value, &request->release);
  if (name == "timeout_ms") return TakeInteger(value, kMaxSettleTimeoutMs, &request->timeout_ms);
  if (name == "ttl_ms") return TakeInteger(value, INT64_MAX, &request->ttl_ms.emplace());
  if (name == "before_ms") return TakeInteger(value, INT64_MAX, &request->before_ms.emplace());
  if (name == "without_proof") return TakeFlag(value, &request->without_proof);
  if (name == "since_ms") return TakeInteger(value, kMaxTraceSinceMs, &request->since_ms);
  if (name == "cursor") {
    KVT_RETURN_IF_ERROR(TakeInteger(value, INT64_MAX, &cursor));
    request->cursor = static_cast<uint64_t>(cursor);
    return {};
  }
  if (name == "limit") {
    KVT_RETURN_IF_ERROR(TakeInteger(value, kMaxListedBlocks, &limit));
    request->limit = static_cast<uint32_t>(limit);
    return {};
  }
  return BadRequest("is unknown");
}

}  // namespace

Result<AdminRequestBody> ParseAdminRequest(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::system::error_code error;
  const json::value document = json::parse(text, error, json::storage_ptr(), options);
  if (error) return MakeError(ErrorCode::kInvalidArgument, "bad_json", error.message());
  if (!document.is_object()) return BadRequest("the request must be an object");
  AdminRequestBody request;
  for (const auto& [key, value] : document.get_object()) {
    if (const Status taken = TakeMember(key, value, &request); !taken) {
      return BadRequest(fmt::format("\"{}\" {}", std::string(key), taken.error().context));
    }
  }
  return request;
}

}  // namespace kvtier
