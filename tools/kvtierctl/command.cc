// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/units.h"
#include "tools/kvtierctl/ask.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

// Advice about errors that give none themselves, by reason.
struct Remedy {
  std::string_view reason;
  std::string_view text;
};
constexpr std::array<Remedy, 4> kRemedies = {{
    {"no_daemon",
     "is kvtierd running? As a service: systemctl status kvtierd; for yourself: kvtierd --dev. "
     "--socket PATH or $KVTIER_SOCKET names another socket"},
    {"hello_expected",
     "this is the socket for clients; --admin-socket PATH names the other one, which is admin.sock "
     "beside it unless server.admin_socket says otherwise"},
    {"request_timeout",
     "it is stopped, hangs or has much to do: see its log; --timeout SECONDS waits longer"},
    {"socket_permission", "administration is for root and the daemon's own user: use sudo"},
}};

std::string_view RemedyFor(const Error& error) {
  const auto remedy = std::ranges::find(kRemedies, error.reason, &Remedy::reason);
  return remedy == kRemedies.end() ? std::string_view() : remedy->text;
}

constexpr uint64_t kBarColumns = 20;

}  // namespace

ExitCode ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return ExitCode::kUsage;
    case ErrorCode::kNotFound:
      return ExitCode::kNotFound;
    case ErrorCode::kPermissionDenied:
      return ExitCode::kPermission;
    case ErrorCode::kUnavailable:
      return ExitCode::kUnreachable;
    case ErrorCode::kCorrupt:
      return ExitCode::kIntegrity;
    case ErrorCode::kTimeout:
      return ExitCode::kTimeout;
    default:
      return ExitCode::kFailed;
  }
}

std::string CommandContext::AdminSocket() const {
  if (!admin_socket.empty()) return admin_socket;
  const std::filesystem::path sibling = std::filesystem::path(socket).parent_path() / "admin.sock";
  std::error_code error;
  return std::filesystem::exists(sibling, error) ? sibling.string() : socket;
}

Result<boost::json::value> ParseReply(const std::string& reply) {
  boost::json::error_code error;
  boost::json::value document = boost::json::parse(reply, error);
  const JsonView parsed(error ? nullptr : &document);
  if (parsed["schema"].Text().starts_with("kvtier.")) return document;
  return MakeError(ErrorCode::kCorrupt, "bad_reply", reply);
}

Result<boost::json::value> Ask(const CommandContext& context, const boost::json::object& request,
                               const AdminProgress& progress) {
  KVT_ASSIGN_OR_RETURN(const std::string reply,
                       CallAdmin(context.AdminSocket(), boost::json::serialize(request),
                                 context.timeout_s * 1000, progress));
  return ParseReply(reply);
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

int FinishOutput(int exit_code, int error_number) {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return exit_code;
  if (error_number == 0) error_number = errno;
  // An earlier write has taken the reason with it: one more byte fails for the same one.
  if (error_number == 0 && (std::fputc('\n', stdout) == EOF || std::fflush(stdout) != 0)) {
    error_number = errno;
  }
  fmt::print(stderr, "kvtierctl: standard output cannot be written{}{}\n",
             error_number == 0 ? "" : ": ", error_number == 0 ? "" : std::strerror(error_number));
  return exit_code == 0 ? static_cast<int>(ExitCode::kFailed) : exit_code;
}

std::string FormatProgress(std::string_view verb, const BlockProgress& progress) {
  // The total may grow meanwhile.
  const uint64_t total = std::max(progress.total, progress.done);
  if (total == 0) return fmt::format("{} nothing yet", verb);
  const uint64_t filled = kBarColumns * progress.done / total;
  std::string line =
      fmt::format("{} [{:#<{}}{:.<{}}] {} of {}", verb, "", filled, "", kBarColumns - filled,
                  FormatCompactCount(progress.done), FormatCompactCount(total));
  if (progress.bytes_per_second > 0) {
    line += fmt::format(", {}/s", FormatByteSize(progress.bytes_per_second));
  }
  if (progress.done > 0 && progress.done < total) {
    const double left_s = progress.elapsed_s * static_cast<double>(total - progress.done) /
                          static_cast<double>(progress.done);
    line += fmt::format(", {} left", FormatElapsed(static_cast<int64_t>(left_s * 1000)));
  }
  return line;
}

AdminProgress ShowBlockProgress(std::string verb) {
  return [verb = std::move(verb), terminal = Terminal(stderr),
          start = std::chrono::steady_clock::now()](std::string_view json) {
    boost::json::error_code error;
    const boost::json::value document = boost::json::parse(json, error);
    const JsonView progress(error ? nullptr : &document);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    terminal.ShowProgress(FormatProgress(verb, {.done = progress["done"].Count(),
                                                .total = progress["total"].Count(),
                                                .bytes_per_second = progress["rate"].Count(),
                                                .elapsed_s = elapsed.count()}));
  };
}

void ClearProgress() { Terminal(stderr).ShowProgress(""); }

}  // namespace kvtier
