// SPDX-License-Identifier: Apache-2.0
#include "tools/support/admin.h"

#include "kvtier/kvtier.h"

namespace kvtier {

Result<std::string> CallAdmin(const std::string& admin_socket, const std::string& request_json,
                              int64_t silence_ms, const AdminProgress& progress) {
  const auto forward = [](void* user, const char* json) {
    const auto& listener = *static_cast<const AdminProgress*>(user);
    if (listener) listener(json);
  };
  char* reply = nullptr;
  // The listener is only called, never changed, behind the C interface's pointer to non-const.
  if (kvt_admin(admin_socket.c_str(), request_json.c_str(), silence_ms, forward,
                const_cast<AdminProgress*>(&progress), &reply) != KVT_OK) {
    return FromClient(kvt::Error::Last());
  }
  std::string text(reply);
  kvt_string_free(reply);
  return text;
}

}  // namespace kvtier
