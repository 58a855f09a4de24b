// SPDX-License-Identifier: Apache-2.0
// The daemon as a whole: starts, restarts and their failures.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/daemon_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// A client's view of the pool.
class Mapping {
 public:
  Mapping(const WireClient& client, const wire::AttachReply& pool)
      : bytes_(pool.pool_bytes), block_bytes_(pool.block_bytes) {
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, client.pool_fd().get(), 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
  }
  ~Mapping() { ::munmap(memory_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::span<std::byte> operator[](BlockHandle block) const {
    return {memory_ + block.index.value * block_bytes_, block_bytes_};
  }

 private:
  std::byte* memory_ = nullptr;
  const uint64_t bytes_;
  const uint64_t block_bytes_;
};

// Writes `count` blocks that hold their number, from `first` on, and lets go of them.
void WriteBlocks(const std::string& socket, uint64_t first, uint32_t count) {
  WireClient client(socket);
  const wire::AttachReply pool = client.Attach();
  const Mapping memory(client, pool);
  const auto allocated = Acquire(&client, pool.pool, {}, count).new_blocks;
  ASSERT_EQ(allocated.size(), count);
  for (uint32_t i = 0; i < count; ++i) {
    std::ranges::fill(memory[allocated[i]], static_cast<std::byte>(first + i));
  }
  client.Send(CommitOf(pool.pool, allocated, Hashes(first, count)), true);
  EXPECT_TRUE(client.Expect<wire::CommitReply>().items.empty());
  client.Send(wire::Release{.pool = pool.pool, .blocks = allocated}, true);
  EXPECT_TRUE(client.Expect<wire::ReleaseReply>().errors.empty());
}

// Waits for a load of `hits` blocks; how many arrived.
uint32_t WaitForLoad(WireClient* client) {
  while (true) {
    const auto received = client->Receive();
    if (!received || !received->Is(wire::MessageType::kLoadProgress)) return 0;
    const auto progress = wire::Decode<wire::LoadProgress>(received->payload).value().progress;
    if (progress.finished) return progress.ready;
  }
}

// How many of the blocks that WriteBlocks wrote are found, all with the right bytes, on `tier`.
uint32_t ReadBlocks(const std::string& socket, uint64_t first, uint32_t count, Tier tier) {
  WireClient client(socket);
  const wire::AttachReply pool = client.Attach();
  const Mapping memory(client, pool);
  const auto acquired = Acquire(&client, pool.pool, Hashes(first, count), 0);
  if (acquired.load != LoadId{}) {
    EXPECT_EQ(WaitForLoad(&client), acquired.hits.size());
  }
  for (uint32_t i = 0; i < acquired.hits.size(); ++i) {
    EXPECT_EQ(acquired.hits[i].tier, tier);
    for (const std::byte byte : memory[acquired.hits[i].handle]) {
      if (byte == static_cast<std::byte>(first + i)) continue;
      ADD_FAILURE() << "wrong byte in block " << i;
      break;
    }
  }
  return static_cast<uint32_t>(acquired.hits.size());
}

class Daemons : public testing::TestWithParam<DiskEngine> {};

TEST_P(Daemons, WhatWasDrainedIsServedAfterARestart) {
  const TestDirectory directory;
  const auto choose_engine = [](Config* config) { config->disk.engine = GetParam(); };
  {
    const DaemonUnderTest daemon(directory.path(), choose_engine);
    ASSERT_TRUE(daemon.status()) << daemon.status().error().ToString();
    WriteBlocks(daemon.socket(), 1, 48);
    EXPECT_EQ(ReadBlocks(daemon.socket(), 1, 48, Tier::kPool), 48u);
  }
  const DaemonUnderTest daemon(directory.path(), choose_engine);
  ASSERT_TRUE(daemon.status()) << daemon.status().error().ToString();
  EXPECT_EQ(ReadBlocks(daemon.socket(), 1, 48, Tier::kDisk), 48u);
}

TEST_P(Daemons, IndexIsRebuiltFromTheHeadersWhenItIsGone) {
  const TestDirectory directory;
  const auto choose_engine = [](Config* config) { config->disk.engine = GetParam(); };
  {
    const DaemonUnderTest daemon(directory.path(), choose_engine);
    ASSERT_TRUE(daemon.status());
    WriteBlocks(daemon.socket(), 1, 16);
  }
  EXPECT_GT(fs::remove_all(directory.path() / "disk" / "index"), 0u);
  const DaemonUnderTest daemon(directory.path(), choose_engine);
  ASSERT_TRUE(daemon.status());
  EXPECT_EQ(ReadBlocks(daemon.socket(), 1, 16, Tier::kDisk), 16u);
}

INSTANTIATE_TEST_SUITE_P(Engines, Daemons, testing::Values(DiskEngine::kAuto, DiskEngine::kPread),
                         [](const auto& engine) {
                           return engine.param == DiskEngine::kAuto ? "Auto" : "Pread";
                         });

// --- keys that are stored, wrapped by a root key ---

class StoredKeys : public testing::Test {
 protected:
  std::string RootKeyFile(const std::string& name, char byte, mode_t mode = 0400) {
    const fs::path path = directory_.path() / name;
    std::ofstream(path) << std::string(32, byte);
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  // Nothing holds memory between these daemons.
  [[nodiscard]] std::unique_ptr<DaemonUnderTest> Start(const std::string& root_key,
                                                       const std::string& previous = "") const {
    return std::make_unique<DaemonUnderTest>(directory_.path(), [&](Config* config) {
      config->restart.keep_for_ms = 0;
      config->disk.encryption = DiskEncryption::kAes256Gcm;
      config->disk.root_key = root_key;
      config->disk.previous_root_key = previous;
    });
  }
  [[nodiscard]] fs::path key_file() const { return directory_.path() / "disk" / "keys"; }

  const TestDirectory directory_;
};

TEST_F(StoredKeys, ServeWhatWasDrainedAfterARestart) {
  const std::string root = RootKeyFile("root", 'a');
  {
    const auto daemon = Start(root);
    ASSERT_TRUE(daemon->status()) << daemon->status().error().ToString();
    WriteBlocks(daemon->socket(), 1, 16);
  }
  const auto daemon = Start(root);
  ASSERT_TRUE(daemon->status()) << daemon->status().error().ToString();
  EXPECT_EQ(ReadBlocks(daemon->socket(), 1, 16, Tier::kDisk), 16u);
}

TEST_F(StoredKeys, AreInNoFileByDefault) {
  const std::string root = RootKeyFile("root", 'a');
  {
    const auto daemon = Start(root);
    ASSERT_TRUE(daemon->status());
    EXPECT_TRUE(fs::exists(key_file()));
  }
  const auto daemon = Start("");
  ASSERT_TRUE(daemon->status());
  WriteBlocks(daemon->socket(), 1, 4);
  EXPECT_FALSE(fs::exists(key_file())) << "what an earlier setting left is removed";
}

TEST_F(StoredKeys, AreWrappedAnewByAnotherRootKey) {
  const std::string old_root = RootKeyFile("old", 'a');
  const std::string new_root = RootKeyFile("new", 'b');
  {
    const auto daemon = Start(old_root);
    ASSERT_TRUE(daemon->status());
    WriteBlocks(daemon->socket(), 1, 16);
  }
  {
    const auto refused = Start(new_root);
    ASSERT_FALSE(refused->status());
    EXPECT_EQ(refused->status().error().reason, "wrong_root_key");
  }
  {
    const auto rotated = Start(new_root, old_root);
    ASSERT_TRUE(rotated->status()) << rotated->status().error().ToString();
  }
  const auto daemon = Start(new_root);
  ASSERT_TRUE(daemon->status());
  EXPECT_EQ(ReadBlocks(daemon->socket(), 1, 16, Tier::kDisk), 16u);
}

TEST_F(StoredKeys, WantARootKeyThatIsWholeAndClosedToOthers) {
  ::unsetenv("CREDENTIALS_DIRECTORY");
  const auto reason_of = [this](const std::string& root) {
    const auto daemon = Start(root);
    return daemon->status() ? "" : daemon->status().error().reason;
  };
  EXPECT_EQ(reason_of(RootKeyFile("open", 'a', 0444)), "root_key_open");
  EXPECT_EQ(reason_of((directory_.path() / "absent").native()), "root_key_open");
  const fs::path shorter = directory_.path() / "short";
  std::ofstream(shorter) << "short";
  EXPECT_EQ(::chmod(shorter.c_str(), 0600), 0);
  EXPECT_EQ(reason_of(shorter), "root_key_size");
  EXPECT_EQ(reason_of("kvtier.root"), "no_credentials");
}

// A disk tier on two drives. One whose `keys.new` is a directory takes no file of keys; one whose
// `keys` is a directory does not let go of it either.
class StoredKeysOfDrives : public StoredKeys {
 protected:
  StoredKeysOfDrives() {
    for (const fs::path& drive : {a_, b_}) fs::create_directory(drive);
  }

  [[nodiscard]] std::unique_ptr<DaemonUnderTest> StartOnBoth() const {
    return std::make_unique<DaemonUnderTest>(directory_.path(), [this](Config* config) {
      config->restart.keep_for_ms = 0;
      config->disk.directories = {a_, b_};
      config->disk.directory = a_;
      config->disk.bytes = 16 * kMiB;
      config->disk.encryption = DiskEncryption::kAes256Gcm;
      config->disk.root_key = root_;
    });
  }
  // The reply's text, or the error's.
  static std::string Ask(const DaemonUnderTest& daemon, const std::string& request) {
    WireClient admin(daemon.admin_socket());
    admin.Send(wire::AdminRequest{request});
    auto received = admin.Receive();
    while (received && received->Is(wire::MessageType::kAdminProgress)) received = admin.Receive();
    if (!received) return "end of stream";
    if (received->Is(wire::MessageType::kAdminReply)) {
      return wire::Decode<wire::AdminReply>(received->payload).value().json;
    }
    return wire::Decode<wire::ErrorReply>(received->payload).value().error.ToString();
  }
  static std::string Erase(const DaemonUnderTest& daemon) {
    return Ask(daemon, R"({"op":"erase","tenant":"default"})");
  }
  static uintmax_t Bytes(const fs::path& drive) {
    return fs::is_regular_file(drive / "keys") ? fs::file_size(drive / "keys") : 0;
  }

  const fs::path a_ = directory_.path() / "a", b_ = directory_.path() / "b";
  const std::string root_ = RootKeyFile("root", 'a');
};

TEST_F(StoredKeysOfDrives, ADriveThatTakesNoneHasNoneOfBefore) {
  for (const fs::path& sick : {a_, b_}) {
    {
      const auto daemon = StartOnBoth();
      ASSERT_TRUE(daemon->status()) << daemon->status().error().ToString();
      WriteBlocks(daemon->socket(), 1, 16);
      EXPECT_NE(Ask(*daemon, R"({"op":"drain"})"), "");
      EXPECT_GT(Bytes(sick), 0u);
      fs::create_directory(sick / "keys.new");
      EXPECT_NE(Erase(*daemon).find(R"("proven":true)"), std::string::npos);
      EXPECT_EQ(Bytes(sick), 0u) << "it has the erased keys";
      WriteBlocks(daemon->socket(), 100, 16);
    }
    {
      const auto daemon = StartOnBoth();
      EXPECT_EQ(ReadBlocks(daemon->socket(), 100, 16, Tier::kDisk), 16u) << sick;
      EXPECT_EQ(ReadBlocks(daemon->socket(), 1, 16, Tier::kDisk), 0u);
    }
    fs::remove(sick / "keys.new");
    const auto daemon = StartOnBoth();
    EXPECT_EQ(ReadBlocks(daemon->socket(), 100, 16, Tier::kDisk), 16u) << sick;
    EXPECT_NE(Erase(*daemon).find(R"("proven":true)"), std::string::npos);
  }
}

TEST_F(StoredKeysOfDrives, WhileADriveKeepsOlderOnesNoErasureIsProven) {
  const auto daemon = StartOnBoth();
  ASSERT_TRUE(daemon->status()) << daemon->status().error().ToString();
  WriteBlocks(daemon->socket(), 1, 16);
  EXPECT_NE(Ask(*daemon, R"({"op":"drain"})"), "");
  fs::remove(a_ / "keys");
  fs::create_directories(a_ / "keys" / "x");
  const std::string erased = Erase(*daemon);
  EXPECT_NE(erased.find("older_keys_stored"), std::string::npos) << erased;
  fs::remove_all(a_ / "keys");
  EXPECT_NE(Erase(*daemon).find(R"("proven":true)"), std::string::npos);
}

TEST_F(StoredKeysOfDrives, AStartTakesTheNewestAndReplacesTheOthers) {
  const fs::path older = directory_.path() / "older";
  {
    const auto daemon = StartOnBoth();
    ASSERT_TRUE(daemon->status()) << daemon->status().error().ToString();
    WriteBlocks(daemon->socket(), 1, 16);
    EXPECT_NE(Ask(*daemon, R"({"op":"drain"})"), "");
    fs::copy_file(a_ / "keys", older);
    EXPECT_NE(Erase(*daemon).find(R"("proven":true)"), std::string::npos);
    WriteBlocks(daemon->socket(), 100, 16);
  }
  fs::rename(older, a_ / "keys");
  const auto daemon = StartOnBoth();
  ASSERT_TRUE(daemon->status()) << daemon->status().error().ToString();
  EXPECT_EQ(ReadBlocks(daemon->socket(), 100, 16, Tier::kDisk), 16u);
  EXPECT_EQ(ReadBlocks(daemon->socket(), 1, 16, Tier::kDisk), 0u);
  EXPECT_EQ(Bytes(a_), Bytes(b_));
}

TEST(Daemon, TwoOnOneDirectoryAreRefused) {
  const TestDirectory directory;
  const DaemonUnderTest first(directory.path());
  ASSERT_TRUE(first.status());
  const DaemonUnderTest second(directory.path(), [](Config* config) {
    config->server.socket += "2";
    config->server.admin_socket += "2";
  });
  ASSERT_FALSE(second.status());
  EXPECT_EQ(second.status().error().reason, "directory_locked");
  EXPECT_NE(second.status().error().context.find(std::to_string(::getpid())), std::string::npos);
  EXPECT_FALSE(IsConfigurationError(second.status().error())) << "that process may end";
  WriteBlocks(first.socket(), 1, 4);
}

TEST(Daemon, TwoOnOneSocketAreRefused) {
  const TestDirectory directory;
  const DaemonUnderTest first(directory.path());
  ASSERT_TRUE(first.status());
  const DaemonUnderTest second(directory.path(),
                               [](Config* config) { config->disk.directory += "2"; });
  ASSERT_FALSE(second.status());
  EXPECT_EQ(second.status().error().reason, "socket_in_use");
  EXPECT_FALSE(fs::exists(directory.path() / "disk2")) << "nothing was made or changed";
  EXPECT_FALSE(IsConfigurationError(second.status().error())) << "that process may end";
  WriteBlocks(first.socket(), 1, 4);
}

TEST(Daemon, StartsWhereAnotherStopsMeanwhile) {
  const TestDirectory directory;
  const std::string path = SmallConfig(directory.path()).server.socket;
  UniqueFd other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(other.get(), 1), 0);
  // As a drain does: its file goes first.
  std::thread stops([&] {
    const UniqueFd probe(::accept4(other.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(::unlink(path.c_str()), 0);
    other.Reset();
  });
  const DaemonUnderTest daemon(directory.path());
  stops.join();
  ASSERT_TRUE(daemon.status()) << daemon.status().error().ToString();
  WriteBlocks(daemon.socket(), 1, 4);
}

TEST(Daemon, WaitsForTheSocketsOfADaemonThatIsEnding) {
  const TestDirectory directory;
  const std::string path = SmallConfig(directory.path()).server.socket;
  const pid_t ended = ::fork();
  if (ended == 0) {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const auto* const to = reinterpret_cast<sockaddr*>(&address);
    const bool listens = ::bind(socket, to, sizeof(address)) == 0 && ::listen(socket, 64) == 0;
    if (!listens || ::fork() != 0) ::_exit(listens ? 0 : 1);
    ::alarm(30);
    // More connections than a daemon that lives is asked.
    for (int i = 0; i < 40; ++i) (void)::accept(socket, nullptr, nullptr);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(ended, &status, 0), ended);
  ASSERT_EQ(status, 0);
  const DaemonUnderTest daemon(directory.path());
  ASSERT_TRUE(daemon.status()) << daemon.status().error().ToString();
}

TEST(Daemon, DirectoryThatCannotBeCostsTheDiskTierAlone) {
  const TestDirectory directory;
  std::ofstream(directory.path() / "file") << "x";
  const DaemonUnderTest daemon(directory.path(), [&](Config* config) {
    config->disk.directory = directory.path() / "file" / "disk";
  });
  ASSERT_TRUE(daemon.status()) << daemon.status().error().ToString();
  WriteBlocks(daemon.socket(), 1, 4);
}

TEST(Daemon, FileWhereTheSocketShouldBeIsNotTouched) {
  const TestDirectory directory;
  std::ofstream(directory.path() / "kvtier.sock") << "precious";
  const DaemonUnderTest daemon(directory.path());
  ASSERT_FALSE(daemon.status());
  EXPECT_EQ(daemon.status().error().reason, "socket_path_taken");
  EXPECT_EQ(fs::file_size(directory.path() / "kvtier.sock"), 8u);
}

TEST(Daemon, CudaIsRefusedWhereThereIsNone) {
  const TestDirectory directory;
  const DaemonUnderTest daemon(
      directory.path(), [](Config* config) { config->pool.devices = {DeviceChoice::kCuda}; });
  ASSERT_FALSE(daemon.status());
  EXPECT_EQ(daemon.status().error().reason, "no_cuda");
  EXPECT_FALSE(IsConfigurationError(daemon.status().error())) << "a driver may come";
}

TEST(Daemon, ServesWithoutADiskTier) {
  const TestDirectory directory;
  const DaemonUnderTest daemon(directory.path(), [](Config* config) { config->disk.bytes = 0; });
  ASSERT_TRUE(daemon.status());
  WriteBlocks(daemon.socket(), 1, 4);
  EXPECT_EQ(ReadBlocks(daemon.socket(), 1, 4, Tier::kPool), 4u);
  EXPECT_FALSE(fs::exists(directory.path() / "disk"));
}

TEST(Daemon, SocketsGoWithIt) {
  const TestDirectory directory;
  { ASSERT_TRUE(DaemonUnderTest(directory.path()).status()); }
  EXPECT_FALSE(fs::exists(directory.path() / "kvtier.sock"));
  EXPECT_FALSE(fs::exists(directory.path() / "admin.sock"));
}

}  // namespace
}  // namespace kvtier
