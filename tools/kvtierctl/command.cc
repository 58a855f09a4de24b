#include "tools/kvtierctl/command.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>

namespace kvtier {

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
}

}  // namespace kvtier
