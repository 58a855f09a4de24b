// kvtierd: see docs/CONFIGURATION.md.

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "daemon/command_line.h"
#include "daemon/config_loader.h"
#include "daemon/config_reference.h"
#include "daemon/daemon.h"
#include "daemon/event_loop.h"
#include "daemon/log.h"
#include "daemon/peer.h"
#include "daemon/version.h"

namespace kvtier {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
// EX_CONFIG of sysexits.h: systemd is told not to restart on it.
constexpr int kExitConfiguration = 78;

// Nothing, or the exit code with which to end.
std::optional<int> ParseArguments(int argc, char** argv, DaemonArguments* arguments) {
  CLI::App app;
  AddDaemonOptions(&app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return std::nullopt;
}

int Complain(const Error& error, int exit_code) {
  fmt::print(stderr, "kvtierd: {}\n", error.context.empty() ? error.ToString() : error.context);
  return exit_code;
}

// Clients cost a descriptor each, and processes in quarantine, too.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int Serve(const Config& config) {
  ::umask(0077);
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  Log log(config.log);
  EventLoop loop;
  SocketPeerInspector peers;
  Daemon daemon(config, &loop, &log, &peers);
  if (const Status started = daemon.Start(); !started) {
    log.Error("daemon.failed", "{}", started.error().ToString());
    return IsConfigurationError(started.error()) ? kExitConfiguration : kExitFailure;
  }
  bool stopping = false;
  loop.OnSignals({SIGTERM, SIGINT}, [&](int signal) {
    if (std::exchange(stopping, true)) {
      log.Warning("daemon.killed", "second signal ({}): ending at once", signal);
      std::_Exit(kExitFailure);
    }
    log.Info("daemon.stopping", "signal {}", signal);
    daemon.BeginShutdown([&loop] { loop.Stop(); });
  });
  fmt::print("READY socket={} admin_socket={} pid={}\n", config.server.socket,
             config.server.admin_socket, ::getpid());
  std::fflush(stdout);
  loop.Run();
  log.Info("daemon.stopped", "pid {}", ::getpid());
  // Copies that did not end in time still use what would be destroyed; whatever is on disk is safe.
  if (!daemon.idle()) std::_Exit(0);
  return 0;
}

int Main(int argc, char** argv) {
  DaemonArguments arguments;
  if (const std::optional<int> exit_code = ParseArguments(argc, argv, &arguments)) {
    return *exit_code;
  }
  if (arguments.print_version) {
    fmt::print("kvtierd {}\n", Version());
    return 0;
  }
  if (arguments.print_reference) {
    fmt::print("{}", ConfigReferenceMarkdown());
    return 0;
  }
  const Result<Config> config = LoadConfig(arguments.config_path, arguments.overrides);
  if (!config) return Complain(config.error(), kExitConfiguration);
  if (arguments.check_config) {
    fmt::print("{}", FormatConfig(*config));
    return 0;
  }
  return Serve(*config);
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
