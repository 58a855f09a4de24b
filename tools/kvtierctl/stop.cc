// SPDX-License-Identifier: Apache-2.0
// kvtierctl stop: ends the daemon as SIGTERM does, and waits. With --release nothing stays in
// memory for the next daemon, also when none runs any more.
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>

#include "base/posix.h"
#include "base/user_paths.h"
#include "daemon/keeper/keeper_link.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

// How long the process may take to end after its connection has, which is when the drain is over.
constexpr int kProcessEndMs = 30'000;

// A daemon in a container has another number here, and is not waited for.
bool IsDaemon(int32_t pid) {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
  return name == "kvtierd";
}

// False: it still runs when the time is over.
bool WaitForProcess(int pidfd) {
  pollfd waiting{.fd = pidfd, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, kProcessEndMs) == 1;
}

// The daemon's messages while it drains; the first message has its number.
class StopProgress {
 public:
  void OnMessage(std::string_view message) {
    boost::json::error_code error;
    const boost::json::value document = boost::json::parse(message, error);
    const JsonView progress(error ? nullptr : &document);
    const auto pid = static_cast<int32_t>(progress["pid"].Count());
    if (!begun_ && pid > 0 && IsDaemon(pid)) {
      process_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
    begun_ = true;
    show_(message);
  }
  [[nodiscard]] bool begun() const { return begun_; }
  [[nodiscard]] int process() const { return process_.get(); }

 private:
  const AdminProgress show_ = ShowBlockProgress("written");
  bool begun_ = false;
  UniqueFd process_;
};

// Releases what a daemon that has ended has kept: the one whose socket was named, or else this
// user's own, whose socket is found no more. Returns whether there was anything.
Result<bool> ReleaseKept(const CommandContext& context, bool named) {
  KVT_ASSIGN_OR_RETURN(const bool released,
                       KeeperLink::End(KeeperPlace::Beside(context.AdminSocket(), "")));
  if (released || named || context.socket != kSystemSocket) return released;
  const std::string own = fmt::format("{}/{}", UserSocketDirectory(), kSocketName);
  return KeeperLink::End(KeeperPlace::Beside(own, ""));
}

void Stop(bool release, bool named, CommandContext* context) {
  StopProgress progress;
  const boost::json::object request{{"op", "stop"}, {"release", release}};
  const auto reply =
      Ask(*context, request, [&progress](std::string_view json) { progress.OnMessage(json); });
  ClearProgress();
  // The daemon does not reply: its end ends the connection.
  const Error error = reply ? Error{ErrorCode::kCorrupt, "bad_reply", {}} : reply.error();
  bool stopped = progress.begun() && error.code == ErrorCode::kUnavailable;
  if (stopped && progress.process() >= 0 && !WaitForProcess(progress.process())) {
    return context->Fail({ErrorCode::kTimeout, "not_stopped", "the daemon has not ended yet"});
  }
  bool released = stopped && release;
  if (!stopped && release && error.code == ErrorCode::kUnavailable) {
    const Result<bool> given_back = ReleaseKept(*context, named);
    if (!given_back) return context->Fail(given_back.error());
    released = *given_back;
  }
  // Where no place was named there is nothing to end.
  const bool none_there = release && !named && error.reason == "no_daemon";
  if (!stopped && !released && !none_there) return context->Fail(error);
  if (context->json) {
    return context->Print(boost::json::serialize(boost::json::object{
        {"schema", "kvtier.stop/1"}, {"stopped", stopped}, {"released", released}}));
  }
  if (!stopped) return context->Print("no daemon ran; nothing stays in memory");
  context->Print(release ? "stopped; nothing stays in memory" : "stopped");
}

}  // namespace

void AddStopCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "stop", "End the daemon as SIGTERM does, after it has written what should survive.");
  const auto release = std::make_shared<bool>(false);
  command->add_flag("--release", *release,
                    "Give back what stays in memory for the next daemon, too; also when the daemon "
                    "has ended already.");
  command->footer(
      "Waits for the end. Under systemd use systemctl stop, which gives everything back.\n"
      "Example:\n"
      "  kvtierctl stop --release");
  command->callback([release, app, context] {
    const bool named = app->count("--socket") > 0 || !context->admin_socket.empty();
    Stop(*release, named, context);
  });
}

}  // namespace kvtier
