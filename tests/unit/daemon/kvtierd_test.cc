// The program: arguments, exit codes, signals.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

// A running kvtierd whose output can be read.
class Kvtierd {
 public:
  explicit Kvtierd(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), KVTIERD_PATH);
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
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Kvtierd() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    (void)Wait();
  }
  Kvtierd(const Kvtierd&) = delete;
  Kvtierd& operator=(const Kvtierd&) = delete;

  void Signal(int signal) const { ::kill(pid_, signal); }

  // Reads output until it contains `text`; false if it ended without.
  bool ReadUntil(const std::string& text) {
    while (text_.find(text) == std::string::npos) {
      char buffer[4096];
      const ssize_t bytes = ::read(output_.get(), buffer, sizeof(buffer));
      if (bytes <= 0) return false;
      text_.append(buffer, static_cast<size_t>(bytes));
    }
    return true;
  }
  // The rest of the output, then the exit code, or minus the signal.
  int Wait() {
    (void)ReadUntil("\x01 never");
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  [[nodiscard]] const std::string& output() const { return text_; }

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
  std::string text_;
};

std::vector<std::string> SmallArguments(const std::filesystem::path& directory) {
  std::vector<std::string> arguments;
  for (const std::string& setting :
       {"server.socket=" + (directory / "kvtier.sock").string(),
        "server.admin_socket=" + (directory / "admin.sock").string(),
        "disk.directory=" + (directory / "disk").string(), std::string("disk.bytes=8MiB"),
        std::string("disk.free_floor_bytes=0B"), std::string("pool.bytes=256KiB"),
        std::string("host.bytes=2MiB"), std::string("cache.chunk_bytes=128KiB")}) {
    arguments.push_back("--set");
    arguments.push_back(setting);
  }
  return arguments;
}

TEST(Kvtierd, TellsItsVersion) {
  Kvtierd kvtierd({"--version"});
  EXPECT_EQ(kvtierd.Wait(), 0);
  EXPECT_EQ(kvtierd.output().substr(0, 8), "kvtierd ");
}

TEST(Kvtierd, RefusesUnknownArguments) { EXPECT_EQ(Kvtierd({"--frobnicate"}).Wait(), 2); }

TEST(Kvtierd, ChecksAConfigurationAndShowsIt) {
  Kvtierd kvtierd({"--check-config", "--set", "pool.bytes=2GiB"});
  EXPECT_EQ(kvtierd.Wait(), 0);
  EXPECT_NE(kvtierd.output().find("\nbytes = \"2GiB\"\n"), std::string::npos);
}

TEST(Kvtierd, EndsWith78OnAnyConfigurationError) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "kvtierd.toml";
  std::ofstream(path) << "[server]\nsocket = \"/run/kv";
  Kvtierd truncated({"--config", path});
  EXPECT_EQ(truncated.Wait(), 78);
  EXPECT_NE(truncated.output().find(path + ":2:"), std::string::npos) << truncated.output();
  EXPECT_EQ(Kvtierd({"--config", "/nonexistent.toml"}).Wait(), 78);
  EXPECT_EQ(Kvtierd({"--set", "pool.bytes=3"}).Wait(), 78);
  auto arguments = SmallArguments(directory.path());
  arguments.insert(arguments.end(), {"--set", "disk.directory=/proc/kvtier"});
  EXPECT_EQ(Kvtierd(arguments).Wait(), 78);
}

TEST(Kvtierd, SecondOneOnADirectoryEndsWith78) {
  const TemporaryDirectory directory;
  Kvtierd first(SmallArguments(directory.path()));
  ASSERT_TRUE(first.ReadUntil("READY socket="));
  auto arguments = SmallArguments(directory.path());
  arguments.insert(arguments.end(), {"--set", "server.socket=" + directory.path().string() + "/2"});
  Kvtierd second(arguments);
  EXPECT_EQ(second.Wait(), 78);
  EXPECT_NE(second.output().find("directory_locked"), std::string::npos) << second.output();
}

TEST(Kvtierd, TerminationDrainsToDisk) {
  const TemporaryDirectory directory;
  {
    Kvtierd kvtierd(SmallArguments(directory.path()));
    ASSERT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
    WireClient client(directory.path() / "kvtier.sock");
    (void)Fill(&client, client.Attach().pool, Hashes(0, 20));
    kvtierd.Signal(SIGTERM);
    EXPECT_EQ(client.ExpectError(0), "shutting_down");
    EXPECT_EQ(kvtierd.Wait(), 0);
    EXPECT_NE(kvtierd.output().find("drain.done"), std::string::npos) << kvtierd.output();
  }
  Kvtierd kvtierd(SmallArguments(directory.path()));
  ASSERT_TRUE(kvtierd.ReadUntil("READY socket="));
  EXPECT_TRUE(kvtierd.ReadUntil("index.loaded: 20 blocks")) << kvtierd.output();
  WireClient client(directory.path() / "kvtier.sock");
  const PoolId pool = client.Attach().pool;
  EXPECT_EQ(Acquire(&client, pool, Hashes(0, 20), 0).hits.size(), 20u);
}

TEST(Kvtierd, StartsAgainAfterAKill) {
  const TemporaryDirectory directory;
  for (int round = 0; round < 3; ++round) {
    Kvtierd kvtierd(SmallArguments(directory.path()));
    ASSERT_TRUE(kvtierd.ReadUntil("READY socket=")) << kvtierd.output();
    WireClient client(directory.path() / "kvtier.sock");
    (void)Fill(&client, client.Attach().pool, Hashes(20 * round, 20));
    kvtierd.Signal(SIGKILL);
    EXPECT_EQ(kvtierd.Wait(), -SIGKILL);
    EXPECT_TRUE(client.AtEnd());
  }
}

}  // namespace
}  // namespace kvtier
