// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>

namespace kvtier {
namespace {

// What to do about errors that do not say so themselves, by reason.
struct Remedy {
  std::string_view reason;
  std::string_view text;
};
constexpr std::array<Remedy, 3> kRemedies = {{
    {"no_daemon",
     "is kvtierd running (systemctl status kvtierd)? --socket PATH names another than "
     "/run/kvtier/kvtier.sock"},
    {"socket_permission", "administration is for root and the daemon's own user: use sudo"},
    {"directory_locked", "stop the daemon first, or use kvtierctl verify, which asks it"},
}};

std::string_view RemedyFor(const Error& error) {
  const auto remedy = std::ranges::find(kRemedies, error.reason, &Remedy::reason);
  return remedy == kRemedies.end() ? std::string_view() : remedy->text;
}

}  // namespace

std::string CommandContext::AdminSocket() const {
  if (!admin_socket.empty()) return admin_socket;
  const std::filesystem::path sibling = std::filesystem::path(socket).parent_path() / "admin.sock";
  std::error_code error;
  return std::filesystem::exists(sibling, error) ? sibling.string() : socket;
}

Result<std::string> CommandContext::CallAdmin(std::string_view operation,
                                              const AdminProgress& progress) const {
  return CallAdminJson(fmt::format(R"({{"op":"{}"}})", operation), progress);
}

Result<std::string> CommandContext::CallAdminJson(const std::string& request,
                                                  const AdminProgress& progress) const {
  return kvtier::CallAdmin(AdminSocket(), request, timeout_s * 1000, progress);
}

void CommandContext::Print(std::string_view text) const {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!text.ends_with('\n')) std::fputc('\n', stdout);
}

void CommandContext::Fail(const Error& error) {
  exit_code = ExitCodeOf(error.code);
  if (json) {
    Print(boost::json::serialize(boost::json::object{{"schema", "kvtier.error/1"},
                                                     {"code", ErrorCodeName(error.code)},
                                                     {"reason", error.reason},
                                                     {"context", error.context}}));
    return;
  }
  const Terminal terminal(stderr);
  fmt::print(stderr, "kvtierctl: {}\n", terminal.Style(error.ToString(), TextStyle::kBad));
  const std::string_view remedy = RemedyFor(error);
  if (!remedy.empty()) fmt::print(stderr, "{}\n", remedy);
}

}  // namespace kvtier
