// SPDX-License-Identifier: Apache-2.0
#include "tools/support/private_daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/posix.h"
#include "base/result.h"
#include "kvtier/kvtier.h"

namespace kvtier {
namespace {

constexpr auto kStartTimeout = std::chrono::seconds(60);
constexpr auto kStartPoll = std::chrono::milliseconds(2);
constexpr size_t kLogTailBytes = 2000;

// "kvtierd" beside this program, or as the search path finds it.
std::string DefaultProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path sibling = self.parent_path() / "kvtierd";
  if (!error && ::access(sibling.c_str(), X_OK) == 0) return sibling;
  return "kvtierd";
}

bool IsServing(const std::string& socket) {
  kvt_connect_options options;
  kvt_connect_options_init(&options);
  options.client_name = "start check";
  kvt_connection* connection = nullptr;
  if (kvt_connect(socket.c_str(), &options, &connection) != KVT_OK) return false;
  kvt_disconnect(connection);
  return true;
}

}  // namespace

Result<PrivateDaemon> PrivateDaemon::Start(PrivateDaemonOptions options) {
  if (options.program.empty()) options.program = DefaultProgram();
  PrivateDaemon daemon(std::move(options));
  if (daemon.options_.directory.empty()) {
    KVT_ASSIGN_OR_RETURN(daemon.temporary_,
                         TemporaryDirectory::Create(daemon.options_.temporary_parent));
    daemon.options_.directory = daemon.temporary_->path();
  }
  for (const std::string& parent : daemon.options_.drive_parents) {
    KVT_ASSIGN_OR_RETURN(TemporaryDirectory drive, TemporaryDirectory::Create(parent));
    daemon.drives_.push_back(std::move(drive));
  }
  KVT_RETURN_IF_ERROR(daemon.Restart());
  return daemon;
}

PrivateDaemon::PrivateDaemon(PrivateDaemon&& other) noexcept
    : options_(std::move(other.options_)),
      temporary_(std::move(other.temporary_)),
      drives_(std::move(other.drives_)),
      pid_(std::exchange(other.pid_, -1)) {}

PrivateDaemon& PrivateDaemon::operator=(PrivateDaemon&& other) noexcept {
  if (this != &other) {
    Kill();
    options_ = std::move(other.options_);
    temporary_ = std::move(other.temporary_);
    drives_ = std::move(other.drives_);
    pid_ = std::exchange(other.pid_, -1);
  }
  return *this;
}

Status PrivateDaemon::Restart() {
  KVT_CHECK(pid_ < 0);
  KVT_RETURN_IF_ERROR(Launch());
  return WaitUntilServing();
}

Status PrivateDaemon::Launch() {
  std::vector<std::string> arguments = {options_.program};
  if (!options_.config_file.empty()) {
    arguments.insert(arguments.end(), {"--config", options_.config_file});
  }
  const auto set = [&arguments](std::string setting) {
    arguments.push_back("--set");
    arguments.push_back(std::move(setting));
  };
  set("server.socket=" + socket());
  set("server.admin_socket=" + admin_socket());
  if (drives_.empty()) {
    set("disk.directory=" + disk_directory());
  } else {
    std::string drives;
    for (const TemporaryDirectory& drive : drives_) {
      drives += fmt::format("{}\"{}\"", drives.empty() ? "" : ", ", drive.path());
    }
    set(fmt::format("disk.directories=[{}]", drives));
  }
  // The daemon ends with its owner: memory that a keeper held for the next one would never be asked
  // for.
  set("restart.keep_for=0s");
  for (const std::string& setting : options_.settings) set(setting);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const UniqueFd log(::open(log_path().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log.valid()) {
    return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "opening " + log_path()));
  }
  pid_ = ::fork();
  if (pid_ < 0) return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "fork"));
  if (pid_ == 0) {
    // After a fork from a process with threads only some calls are safe, and these are.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(log.get(), STDOUT_FILENO);
    ::dup2(log.get(), STDERR_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  return {};
}

Status PrivateDaemon::WaitUntilServing() {
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (!IsServing(socket())) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        return MakeError(ErrorCode::kNotFound, "no_kvtierd",
                         options_.program + " cannot be run; is it in $PATH?");
      }
      const bool refused = WIFEXITED(status) && WEXITSTATUS(status) == EX_CONFIG;
      return MakeError(refused ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
                       refused ? "bad_settings" : "daemon_exited", LogTail());
    }
    if (std::chrono::steady_clock::now() > deadline) {
      Kill();
      return MakeError(ErrorCode::kTimeout, "daemon_silent", LogTail());
    }
    std::this_thread::sleep_for(kStartPoll);
  }
  return {};
}

void PrivateDaemon::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  Reap();
}

int PrivateDaemon::Terminate() {
  KVT_CHECK(pid_ > 0);
  ::kill(pid_, SIGTERM);
  return Reap();
}

int PrivateDaemon::Reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string PrivateDaemon::LogTail() const {
  std::ifstream file(log_path(), std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string_view log = text.view();
  return fmt::format("the end of {}:\n{}", log_path(),
                     log.substr(log.size() - std::min(log.size(), kLogTailBytes)));
}

}  // namespace kvtier
