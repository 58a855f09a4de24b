// SPDX-License-Identifier: Apache-2.0
// kvtierctl doctor: what on this machine would hurt a kvtierd or its clients, and what to do.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/units.h"
#include "base/user_paths.h"
#include "kvtier/kvtier.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/doctor_checks.h"
#include "tools/support/json_view.h"
#include "tools/support/terminal.h"

namespace kvtier {
namespace {

constexpr uint64_t kTestBytes = 128 * kMiB;

struct DoctorArguments {
  std::string directory;  // empty: the running daemon's, else where `kvtierd --dev` would write
};

uint64_t LimitOf(int resource, bool hard) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return UINT64_MAX;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? UINT64_MAX : value;
}

// Whether clients pass over a socket where this user's own would be, because another user may have
// put it there. They would connect to the system's socket instead and not say so.
Check TrustCheck() {
  const std::string path = UserSocketDirectory() + "/" + std::string(kSocketName);
  const std::string why = WhyNotTrusted(path);
  if (why.empty()) return {"socket owner", CheckLevel::kOk, "no socket of another user", {}};
  return {"socket owner", CheckLevel::kFail, why,
          "clients pass it over; remove it, or name it with --socket or $KVTIER_SOCKET if you "
          "trust it"};
}

// Whether this user's clients are served.
Check ClientCheck(const std::string& socket) {
  kvt_connection* connection = nullptr;
  const kvt_status status = kvt_connect(socket.c_str(), nullptr, &connection);
  if (status == KVT_OK) {
    kvt_disconnect(connection);
    return {"daemon", CheckLevel::kOk, "serves on " + socket, {}};
  }
  const kvt_error* const error = kvt_last_error();
  const std::string found = fmt::format("{}: {}", socket, error->reason);
  if (status == KVT_UNAVAILABLE) {
    return {"daemon", CheckLevel::kWarn, found,
            "none runs there; start one with kvtierd --dev, or systemctl start kvtierd"};
  }
  if (status == KVT_PERMISSION_DENIED) {
    return {"daemon", CheckLevel::kFail, found,
            fmt::format("user {} belongs to no [[tenant]] of the daemon's configuration, or may "
                        "not open the socket: add uids = [{}]",
                        ::geteuid(), ::geteuid())};
  }
  return {"daemon", CheckLevel::kFail, found, "see the daemon's log"};
}

// Whether `kvtierd --dev` would leave its disk tier out because of who owns the directory. One that
// is not there yet is made for the user alone.
Check DiskOwnerCheck(const std::string& directory) {
  std::error_code error;
  const bool found = std::filesystem::exists(std::filesystem::symlink_status(directory, error));
  const std::string why = found ? WhyNotPrivate(directory) : "";
  if (why.empty()) return {"disk owner", CheckLevel::kOk, "no directory of another user", {}};
  return {"disk owner", CheckLevel::kWarn, why,
          "kvtierd --dev leaves the disk tier out: chown and chmod 700 it, or remove it"};
}

// `kvtierd --dev` makes its directory with those above it.
std::string NearestThatIsThere(std::filesystem::path directory) {
  std::error_code error;
  while (directory.has_relative_path() && !std::filesystem::exists(directory, error)) {
    directory = directory.parent_path();
  }
  return directory;
}

// Checks of the daemon's own report: a disk tier that is degraded, and a version that is not this
// program's. `status` is nowhere if there is no daemon, or no right to ask.
void AddDaemonChecks(JsonView status, std::vector<Check>* checks) {
  if (!status.present()) return;
  const std::string version = status["version"].Text();
  if (version != kvt_version()) {
    checks->push_back({"version", CheckLevel::kWarn,
                       fmt::format("kvtierd {}, kvtierctl {}", version, kvt_version()),
                       "restart the daemon after an upgrade"});
  }
  if (status["disk"]["degraded"].IsTrue()) {
    checks->push_back({"disk tier", CheckLevel::kWarn, "degraded",
                       "kvtierctl status and the daemon's log say by what; see the runbook in "
                       "OPERATIONS.md"});
  }
  status["disk"]["drives"].ForEach([checks](JsonView drive) {
    if (drive["state"].Text() == "serving") return;
    checks->push_back({"drive", CheckLevel::kWarn,
                       fmt::format("{}: {}, {}", drive["directory"].Text(), drive["state"].Text(),
                                   drive["why"].Text()),
                       "look at its mount and the kernel's log, then restart the daemon"});
  });
}

// Root administers the service and is mostly no tenant of it: the daemon would refuse it as a
// client, and log that, though nothing is wrong.
Check ServiceCheck(const std::string& socket, JsonView status) {
  if (::geteuid() != 0 || !status.present()) return ClientCheck(socket);
  return {"daemon",
          CheckLevel::kOk,
          fmt::format("pid {} serves on {}, {} clients", status["pid"].Count(),
                      status["socket"].Text(), status["sessions"]["count"].Count()),
          {}};
}

// Limits of the daemon that runs, which may be another's than this shell's.
uint64_t LimitFor(JsonView status, std::string_view name, int resource, bool hard) {
  const std::optional<uint64_t> limit =
      status.present() ? LimitOfProcess("/", status["pid"].Count(), name, hard) : std::nullopt;
  return limit.value_or(LimitOf(resource, hard));
}

std::vector<Check> Examine(const DoctorArguments& arguments, const CommandContext& context) {
  const std::filesystem::path root = "/";
  const Result<boost::json::value> document = Ask(context, "status");
  const JsonView status(document ? &*document : nullptr);
  std::vector<Check> checks = {
      DriverCheck(),
      KernelCheck(),
      MemoryCheck(root),
      CpuCheck(root),
      MemlockCheck(LimitFor(status, "Max locked memory", RLIMIT_MEMLOCK, /*hard=*/false)),
      DescriptorCheck(LimitFor(status, "Max open files", RLIMIT_NOFILE,
                               /*hard=*/true)),
      HugepageCheck(root),
      NumaCheck(root),
      IoUringCheck(root),
      LentMemoryCheck()};
  checks.push_back(TrustCheck());
  checks.push_back(ServiceCheck(context.socket, status));
  AddDaemonChecks(status, &checks);
  std::vector<std::string> directories;
  if (!arguments.directory.empty()) directories.push_back(arguments.directory);
  if (directories.empty()) {
    status["disk"]["drives"].ForEach([&directories](JsonView drive) {
      if (drive["state"].Text() == "serving") directories.push_back(drive["directory"].Text());
    });
  }
  if (directories.empty()) {
    checks.push_back(DiskOwnerCheck(UserDiskDirectory()));
    directories.push_back(NearestThatIsThere(UserDiskDirectory()));
  }
  for (const std::string& directory : directories) {
    std::ranges::move(DiskChecks(directory, kTestBytes), std::back_inserter(checks));
  }
  return checks;
}

std::string_view LevelName(CheckLevel level) {
  switch (level) {
    case CheckLevel::kOk:
      return "ok";
    case CheckLevel::kWarn:
      return "warn";
    case CheckLevel::kFail:
      return "fail";
  }
  return "";
}

TextStyle StyleOf(CheckLevel level) {
  if (level == CheckLevel::kOk) return TextStyle::kGood;
  return level == CheckLevel::kWarn ? TextStyle::kWarning : TextStyle::kBad;
}

uint64_t CountOf(const std::vector<Check>& checks, CheckLevel level) {
  return static_cast<uint64_t>(std::ranges::count(checks, level, &Check::level));
}

std::string AsText(const std::vector<Check>& checks) {
  const Terminal terminal(stdout);
  std::string text;
  for (const Check& check : checks) {
    text += fmt::format("{}{:{}}{:<13} {}\n",
                        terminal.Style(LevelName(check.level), StyleOf(check.level)), "",
                        6 - LevelName(check.level).size(), check.name, check.found);
    if (!check.advice.empty()) text += fmt::format("{:20}-> {}\n", "", check.advice);
  }
  const uint64_t failed = CountOf(checks, CheckLevel::kFail);
  const uint64_t warned = CountOf(checks, CheckLevel::kWarn);
  if (failed + warned == 0) return text + "all is well\n";
  return text + fmt::format("{} would hurt, {} could be better\n", failed, warned);
}

std::string AsJson(const std::vector<Check>& checks) {
  boost::json::array list;
  for (const Check& check : checks) {
    list.push_back(boost::json::object{{"name", check.name},
                                       {"level", LevelName(check.level)},
                                       {"found", check.found},
                                       {"advice", check.advice}});
  }
  return boost::json::serialize(boost::json::object{{"schema", "kvtier.doctor/1"},
                                                    {"failed", CountOf(checks, CheckLevel::kFail)},
                                                    {"warned", CountOf(checks, CheckLevel::kWarn)},
                                                    {"checks", std::move(list)}});
}

}  // namespace

void AddDoctorCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "doctor", "Check this machine and say what would hurt a daemon or its clients.");
  const auto arguments = std::make_shared<DoctorArguments>();
  command
      ->add_option("--directory", arguments->directory,
                   "Where the disk tier is or would be; default: as the running daemon says, else "
                   "as for kvtierd --dev.")
      ->type_name("DIRECTORY");
  command->footer(
      "Each line is ok, warn (works, but slower or with less) or fail. Writes up to 128 MiB to\n"
      "measure the disk. Ends with 1 if a line is fail.");
  command->callback([arguments, context] {
    const std::vector<Check> checks = Examine(*arguments, *context);
    context->Print(context->json ? AsJson(checks) : AsText(checks));
    if (CountOf(checks, CheckLevel::kFail) > 0) context->exit_code = ExitCode::kFailed;
  });
}

}  // namespace kvtier
