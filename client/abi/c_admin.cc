// SPDX-License-Identifier: Apache-2.0
// The C ABI: administration, and what belongs to no object.

#include <cstdlib>
#include <cstring>
#include <string>

#include "client/abi/last_error.h"
#include "client/core/admin_call.h"

namespace kvtier::client {
namespace {

// Long enough for any single step of the daemon's that reports nothing.
constexpr int64_t kDefaultAdminTimeoutMs = 30 * 1000;

Status Admin(const char* socket_path, const char* request_json, int64_t timeout_ms,
             kvt_admin_progress progress, void* user, char** reply_json) {
  KVT_RETURN_IF_ERROR(CheckPointer(socket_path, "admin_socket_path"));
  KVT_RETURN_IF_ERROR(CheckPointer(request_json, "request_json"));
  KVT_RETURN_IF_ERROR(CheckPointer(reply_json, "reply_json"));
  *reply_json = nullptr;
  KVT_ASSIGN_OR_RETURN(
      const std::string reply,
      CallAdmin(socket_path, request_json, timeout_ms < 0 ? kDefaultAdminTimeoutMs : timeout_ms,
                [&](const std::string& json) {
                  if (progress != nullptr) progress(user, json.c_str());
                }));
  *reply_json = static_cast<char*>(std::malloc(reply.size() + 1));
  if (*reply_json == nullptr) return MakeError(ErrorCode::kResourceExhausted, "out_of_memory");
  std::memcpy(*reply_json, reply.c_str(), reply.size() + 1);
  return {};
}

}  // namespace
}  // namespace kvtier::client

namespace client = kvtier::client;

extern "C" {

kvt_status kvt_admin(const char* admin_socket_path, const char* request_json, int64_t timeout_ms,
                     kvt_admin_progress progress, void* user, char** reply_json) {
  return client::Guard([&] {
    return client::Admin(admin_socket_path, request_json, timeout_ms, progress, user, reply_json);
  });
}

void kvt_string_free(char* text) { std::free(text); }

const char* kvt_version(void) { return KVT_VERSION_TEXT; }

const char* kvt_status_name(kvt_status status) {
  if (status == KVT_OK) return "ok";
  // The names are literals, and so end with a zero.
  return kvtier::ErrorCodeName(static_cast<kvtier::ErrorCode>(status)).data();
}

const char* kvt_miss_name(kvt_miss miss) {
  switch (miss) {
    case KVT_MISS_NONE:
      return "none";
    case KVT_MISS_UNKNOWN:
      return "unknown";
    case KVT_MISS_EXPIRED:
      return "expired";
    case KVT_MISS_POOL_FULL:
      return "pool_full";
    case KVT_MISS_HOST_FULL:
      return "host_full";
    case KVT_MISS_READ_ERROR:
      return "read_error";
    case KVT_MISS_CHECKSUM_MISMATCH:
      return "checksum_mismatch";
    case KVT_MISS_IDENTITY_MISMATCH:
      return "identity_mismatch";
    case KVT_MISS_COPY_FAILED:
      return "copy_failed";
    case KVT_MISS_CANCELLED:
      return "cancelled";
    case KVT_MISS_UNAVAILABLE:
      return "unavailable";
    default:
      return "other";
  }
}

}  // extern "C"
