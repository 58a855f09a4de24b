// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/harness/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/posix.h"
#include "tools/support/temporary_directory.h"

namespace kvtier {
namespace {

constexpr int kCannotRun = 127;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

UniqueFd CreateFile(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
}

}  // namespace

ProgramResult RunProgram(const std::vector<std::string>& arguments, std::optional<unsigned> uid) {
  // Files instead of pipes: nothing has to be read while the program runs.
  auto directory = TemporaryDirectory::Create();
  EXPECT_TRUE(directory);
  if (!directory) return {};
  const std::string output_path = directory->path() + "/output";
  const std::string errors_path = directory->path() + "/errors";
  const UniqueFd output = CreateFile(output_path);
  const UniqueFd errors = CreateFile(errors_path);
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(output.get(), STDOUT_FILENO);
    ::dup2(errors.get(), STDERR_FILENO);
    if (uid && (::setgid(*uid) != 0 || ::setuid(*uid) != 0)) ::_exit(kCannotRun);
    ::execvp(argv[0], argv.data());
    ::_exit(kCannotRun);
  }
  EXPECT_GT(pid, 0);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const int exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  EXPECT_NE(exit_code, kCannotRun) << arguments[0] << " cannot be run";
  return {exit_code, ReadFile(output_path), ReadFile(errors_path)};
}

std::string KvtierdPath() { return KVTIER_PROGRAM_DIRECTORY "/kvtierd"; }
std::string KvtierctlPath() { return KVTIER_PROGRAM_DIRECTORY "/kvtierctl"; }
std::string ToyEnginePath() { return KVTIER_PROGRAM_DIRECTORY "/kvtier-toy-engine"; }

}  // namespace kvtier
