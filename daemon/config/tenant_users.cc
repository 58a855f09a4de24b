// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/tenant_users.h"

#include <fmt/format.h>
#include <pwd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace kvtier {
namespace {

// Far more than any entry takes.
constexpr size_t kEntryBytes = 64 * 1024;

Status LookUp(const std::string& name, const TenantConfig& tenant, uint32_t* uid) {
  std::vector<char> buffer(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  const int error = ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found != nullptr) {
    *uid = entry.pw_uid;
    return {};
  }
  const auto place = tenant.places.find("users");
  return MakeError(ErrorCode::kInvalidArgument, "config_unknown_user",
                   fmt::format("{}: tenant.users: there is no user \"{}\" on this machine{}; make "
                               "it, name another, or give its number in tenant.uids",
                               place == tenant.places.end() ? tenant.place : place->second, name,
                               error == 0 ? "" : fmt::format(" ({})", std::strerror(error))));
}

}  // namespace

Status LookUpUsers(Config* config) {
  for (TenantConfig& tenant : config->tenants) {
    tenant.user_uids.clear();
    for (const std::string& name : tenant.users) {
      uint32_t uid = 0;
      KVT_RETURN_IF_ERROR(LookUp(name, tenant, &uid));
      tenant.user_uids.push_back(uid);
    }
  }
  return {};
}

}  // namespace kvtier
