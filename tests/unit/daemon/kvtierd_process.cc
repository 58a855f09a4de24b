// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/kvtierd_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvtier {

Kvtierd::Kvtierd(std::vector<std::string> arguments, const Limits& limits) {
  arguments.insert(arguments.begin(), limits.program.empty() ? KVTIERD_PATH : limits.program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int fds[2];
  EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  output_ = UniqueFd(fds[0]);
  const UniqueFd writing(fds[1]);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(writing.get(), STDOUT_FILENO);
    ::dup2(writing.get(), STDERR_FILENO);
    const auto restrict_to = [](auto resource, uint64_t value) {
      const rlimit limit{value, value};
      if (value > 0) ::setrlimit(resource, &limit);
    };
    restrict_to(RLIMIT_AS, limits.address_space_bytes);
    restrict_to(RLIMIT_NOFILE, limits.descriptors);
    restrict_to(RLIMIT_FSIZE, limits.file_bytes);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
}

Kvtierd::~Kvtierd() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  (void)Wait();
}

void Kvtierd::Signal(int signal) const { ::kill(pid_, signal); }

bool Kvtierd::ReadUntil(const std::string& text) {
  while (text_.find(text) == std::string::npos) {
    char buffer[4096];
    const ssize_t bytes = ::read(output_.get(), buffer, sizeof(buffer));
    if (bytes <= 0) return false;
    text_.append(buffer, static_cast<size_t>(bytes));
  }
  return true;
}

int Kvtierd::Wait() {
  (void)ReadUntil("\x01 never");
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::vector<std::string> SmallArguments(const std::filesystem::path& directory) {
  std::vector<std::string> arguments;
  for (const std::string& setting :
       {"server.socket=" + (directory / "kvtier.sock").string(),
        "server.admin_socket=" + (directory / "admin.sock").string(),
        "disk.directory=" + (directory / "disk").string(), std::string("disk.bytes=8MiB"),
        std::string("disk.free_floor_bytes=0B"), std::string("restart.keep_for=0s"),
        std::string("pool.bytes=256KiB"), std::string("host.bytes=2MiB"),
        std::string("cache.slab_bytes=128KiB")}) {
    arguments.push_back("--set");
    arguments.push_back(setting);
  }
  return arguments;
}

}  // namespace kvtier
