// SPDX-License-Identifier: Apache-2.0
// The keeper's process and the daemon's end of it, through real sockets and a real process.
#include "daemon/keeper/keeper.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "daemon/keeper/keeper_link.h"
#include "daemon/keeper/store_opening.h"
#include "tests/fakes/lingering_socket.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

constexpr int64_t kLongMs = 60'000;

UniqueFd MemoryWith(const std::string& text) {
  UniqueFd memory(::memfd_create("kept", MFD_CLOEXEC));
  EXPECT_EQ(::pwrite(memory.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return memory;
}

std::string TextOf(const std::optional<UniqueFd>& memory) {
  if (!memory) return "nothing";
  char text[64] = {};
  return ::pread(memory->get(), text, sizeof(text) - 1, 0) < 0 ? "unreadable" : text;
}

// A process is gone when no file of it can be read any more; it is no child of this one.
bool EndsSoon(int32_t pid) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd waiting{.fd = process.get(), .events = POLLIN, .revents = 0};
  return !process.valid() || ::poll(&waiting, 1, static_cast<int>(kLongMs)) == 1;
}

class KeeperTest : public testing::Test {
 protected:
  ~KeeperTest() override { (void)KeeperLink::End(place_); }

  [[nodiscard]] KeeperLink Connect(int64_t keep_for_ms = kLongMs) {
    Result<KeeperLink> link = KeeperLink::Open(place_, keep_for_ms);
    KVT_CHECK(link.has_value());
    return *std::move(link);
  }
  [[nodiscard]] std::string TakenText(KeeperLink* link, const std::string& name) {
    const Result<std::optional<UniqueFd>> taken = link->Take(name);
    return taken ? TextOf(*taken) : taken.error().reason;
  }

  TestDirectory directory_;
  const std::string daemon_socket_ = (directory_.path() / "kvtier.sock").string();
  const KeeperPlace place_ = KeeperPlace::Beside(daemon_socket_, KVTIER_KEEPER_PATH);
};

TEST_F(KeeperTest, HasWhatADeadDaemonKept) {
  int32_t pid = 0;
  {
    KeeperLink first = Connect();
    EXPECT_FALSE(first.found());
    pid = first.pid();
    ASSERT_TRUE(first.Keep("host-arena", MemoryWith("blocks").get()));
    ASSERT_TRUE(first.Keep("host-table", MemoryWith("old table").get()));
    ASSERT_TRUE(first.Keep("host-table", MemoryWith("table").get()));
  }
  KeeperLink second = Connect();
  EXPECT_TRUE(second.found());
  EXPECT_EQ(second.pid(), pid);
  EXPECT_EQ(TakenText(&second, "host-arena"), "blocks");
  EXPECT_EQ(TakenText(&second, "host-table"), "table");
  EXPECT_EQ(TakenText(&second, "pool"), "nothing");
}

TEST_F(KeeperTest, TakingLeavesADuplicateForTheNext) {
  for (int daemons = 0; daemons < 3; ++daemons) {
    KeeperLink link = Connect();
    if (daemons == 0) {
      ASSERT_TRUE(link.Keep("host-arena", MemoryWith("blocks").get()));
    }
    EXPECT_EQ(TakenText(&link, "host-arena"), "blocks") << daemons;
  }
}

TEST_F(KeeperTest, LookingForAKeeperStartsNone) {
  const Result<std::optional<KeeperLink>> none = KeeperLink::Find(place_, kLongMs);
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
  const int32_t pid = Connect().pid();
  const Result<std::optional<KeeperLink>> found = KeeperLink::Find(place_, kLongMs);
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->pid(), pid);
}

TEST_F(KeeperTest, ServesOneDaemonAtATime) {
  KeeperLink first = Connect();
  const Result<KeeperLink> second = KeeperLink::Open(place_, kLongMs);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().reason, "keeper_busy");
  const Result<bool> ended = KeeperLink::End(place_);
  ASSERT_FALSE(ended) << "only its own daemon may end it";
  EXPECT_TRUE(first.Keep("host-arena", MemoryWith("blocks").get()));
}

TEST_F(KeeperTest, GivesBackWhatTheNextDaemonDoesNotWant) {
  {
    KeeperLink first = Connect();
    ASSERT_TRUE(first.Keep("host-arena", MemoryWith("blocks").get()));
    ASSERT_TRUE(first.Keep("host-table", MemoryWith("table").get()));
    ASSERT_TRUE(first.Keep("pool-7", MemoryWith("of another version").get()));
    ASSERT_TRUE(first.Release("host-table"));
  }
  {
    KeeperLink second = Connect();
    EXPECT_EQ(TakenText(&second, "host-arena"), "blocks");
    EXPECT_EQ(TakenText(&second, "host-table"), "nothing");
    ASSERT_TRUE(second.ReleaseUnclaimed());
  }
  KeeperLink third = Connect();
  EXPECT_EQ(TakenText(&third, "host-arena"), "blocks");
  EXPECT_EQ(TakenText(&third, "pool-7"), "nothing");
}

// As with memory of tens of GiB, of which the keeper has the last descriptor.
TEST_F(KeeperTest, AnswersWhileItClosesWhatTakesLong) {
  LingeringSocket replaced, released, unclaimed;
  {
    KeeperLink first = Connect();
    ASSERT_TRUE(first.Keep("host-arena", replaced.Take().get()));
    ASSERT_TRUE(first.Keep("host-arena", MemoryWith("blocks").get()));
    ASSERT_TRUE(first.Keep("host-table", released.Take().get()));
    ASSERT_TRUE(first.Release("host-table"));
    ASSERT_TRUE(first.Keep("pool-7", unclaimed.Take().get()));
    EXPECT_EQ(TakenText(&first, "host-arena"), "blocks");
  }
  KeeperLink second = Connect();
  EXPECT_EQ(TakenText(&second, "host-arena"), "blocks");
  ASSERT_TRUE(second.ReleaseUnclaimed());
  EXPECT_EQ(TakenText(&second, "pool-7"), "nothing");
}

TEST_F(KeeperTest, HoldsABoundedNumberOfDescriptors) {
  KeeperLink link = Connect();
  const UniqueFd memory = MemoryWith("");
  for (size_t i = 0; i < kMaxKeptDescriptors; ++i) {
    ASSERT_TRUE(link.Keep("name-" + std::to_string(i), memory.get()));
  }
  const Status more = link.Keep("one-more", memory.get());
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().reason, "keeper_full");
  EXPECT_TRUE(link.Keep("name-3", memory.get())) << "in place of what has the name";
  ASSERT_TRUE(link.Release("name-5"));
  EXPECT_TRUE(link.Keep("one-more", memory.get()));
}

TEST_F(KeeperTest, EndsWhenNoDaemonComesInTime) {
  int32_t pid = 0;
  {
    KeeperLink link = Connect(/*keep_for_ms=*/50);
    pid = link.pid();
  }
  EXPECT_TRUE(EndsSoon(pid));
  EXPECT_FALSE(std::filesystem::exists(place_.socket));
  EXPECT_FALSE(Connect().found());
}

TEST_F(KeeperTest, EndsWhenItsDirectoryIsGone) {
  const KeeperLink link = Connect();
  std::filesystem::remove_all(directory_.path());
  EXPECT_TRUE(EndsSoon(link.pid()));
}

TEST_F(KeeperTest, EndsWhenItIsAsked) {
  int32_t pid = 0;
  {
    KeeperLink link = Connect();
    pid = link.pid();
    ASSERT_TRUE(link.Keep("host-arena", MemoryWith("blocks").get()));
    ASSERT_TRUE(link.End());
  }
  EXPECT_TRUE(EndsSoon(pid));
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  EXPECT_FALSE(*KeeperLink::End(place_)) << "none is there to end";
}

TEST_F(KeeperTest, IsReplacedAfterAKillAndASocketIsLeftOver) {
  int32_t pid = 0;
  {
    KeeperLink link = Connect();
    pid = link.pid();
    ASSERT_TRUE(link.Keep("host-arena", MemoryWith("blocks").get()));
    ::kill(pid, SIGKILL);
    EXPECT_TRUE(EndsSoon(pid));
  }
  EXPECT_TRUE(std::filesystem::exists(place_.socket));
  KeeperLink next = Connect();
  EXPECT_FALSE(next.found());
  EXPECT_EQ(TakenText(&next, "host-arena"), "nothing");
}

TEST_F(KeeperTest, OnlyOneListensBesideASocket) {
  const KeeperLink link = Connect();
  Keeper second(place_.socket);
  EXPECT_EQ(second.Open(), Keeper::Opened::kAnotherRuns);
}

TEST_F(KeeperTest, AnotherKindOfFileIsNotReplaced) {
  std::ofstream(place_.socket) << "an operator's";
  const Result<KeeperLink> link = KeeperLink::Open(place_, kLongMs);
  ASSERT_FALSE(link);
  EXPECT_TRUE(std::filesystem::is_regular_file(place_.socket));
}

TEST_F(KeeperTest, AMissingProgramIsAnErrorThatNamesIt) {
  const KeeperPlace nowhere{place_.socket, "/nonexistent/kvtier-keeper"};
  const Result<KeeperLink> link = KeeperLink::Open(nowhere, kLongMs);
  ASSERT_FALSE(link);
  EXPECT_NE(link.error().context.find("/nonexistent/kvtier-keeper"), std::string::npos);
}

TEST_F(KeeperTest, TakesLittleMemory) {
  const KeeperLink link = Connect();
  std::ifstream status("/proc/" + std::to_string(link.pid()) + "/status");
  std::string line;
  while (std::getline(status, line) && !line.starts_with("VmRSS:")) {
  }
  EXPECT_LT(std::stoull(line.substr(6)), uint64_t{KVTIER_KEEPER_RSS_KIB}) << line;
}

// ---- hostile bytes ----

// One in three has the size of a packet, with fields that are mostly in range.
std::string Garbage(std::mt19937_64* random) {
  const auto below = [random](uint64_t bound) { return (*random)() % bound; };
  KeeperPacket packet;
  if (below(8) == 0) packet.magic = static_cast<uint32_t>((*random)());
  if (below(4) == 0) packet.version = static_cast<uint32_t>(below(4));
  do {
    packet.request = static_cast<KeeperRequest>(below(9));
  } while (packet.request == KeeperRequest::kEnd);
  packet.status = static_cast<KeeperStatus>(below(9));
  packet.number = static_cast<int64_t>((*random)());
  if (packet.request == KeeperRequest::kHello) packet.number = kLongMs;
  for (char& letter : packet.name) letter = static_cast<char>(below(below(2) == 0 ? 256 : 2));
  std::string bytes(reinterpret_cast<const char*>(&packet), sizeof(packet));
  if (below(3) == 0) bytes.resize(below(2 * sizeof(packet)));
  return bytes;
}

// With up to three descriptors. False: the keeper has closed the connection.
bool SendGarbage(int socket, const std::string& bytes, size_t descriptors, int descriptor) {
  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    const int fds[3] = {descriptor, descriptor, descriptor};
    std::memcpy(CMSG_DATA(part), fds, descriptors * sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN;
}

size_t OpenDescriptorsOf(int32_t pid) {
  const auto files = std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

// A thread of the keeper closes them.
bool ComesDownTo(size_t descriptors, int32_t pid) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(kLongMs);
  while (OpenDescriptorsOf(pid) > descriptors) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_F(KeeperTest, GarbageEndsAConnectionAndNothingElse) {
  const int32_t pid = Connect().pid();
  std::mt19937_64 random(17);
  const UniqueFd memory = MemoryWith("garbage");
  for (int round = 0; round < 2000; ++round) {
    const UniqueFd socket = OpenKeeperSocket(place_.socket, /*listening=*/false);
    if (!socket.valid()) continue;  // the keeper has not accepted the last ones yet
    for (int packet = 0; packet < 8; ++packet) {
      const std::string bytes = Garbage(&random);
      if (!SendGarbage(socket.get(), bytes, random() % 4, memory.get())) break;
    }
  }
  KeeperLink link = Connect();
  EXPECT_TRUE(link.found());
  EXPECT_EQ(link.pid(), pid) << "the keeper has died";
  ASSERT_TRUE(link.ReleaseUnclaimed());
  EXPECT_TRUE(ComesDownTo(8, pid)) << "descriptors were left open";
  ASSERT_TRUE(link.Keep("host-arena", MemoryWith("blocks").get()));
  EXPECT_EQ(TakenText(&link, "host-arena"), "blocks");
}

TEST_F(KeeperTest, AKeeperOfAnotherVersionIsReplaced) {
  int32_t pid = 0;
  {
    KeeperLink link = Connect();
    pid = link.pid();
    ASSERT_TRUE(link.Keep("host-arena", MemoryWith("blocks").get()));
  }
  // The message of a daemon of a later version, and its request when it hears of this one.
  const UniqueFd socket = OpenKeeperSocket(place_.socket, /*listening=*/false);
  ASSERT_TRUE(socket.valid());
  KeeperPacket answer;
  UniqueFd none;
  ASSERT_TRUE(SendPacket(socket.get(), {.version = kKeeperVersion + 1}, -1));
  ASSERT_EQ(ReceivePacket(socket.get(), &answer, &none), Received::kPacket);
  EXPECT_EQ(answer.status, KeeperStatus::kOtherVersion);
  ASSERT_TRUE(SendPacket(socket.get(),
                         {.version = kKeeperVersion + 1, .request = KeeperRequest::kEnd}, -1));
  ASSERT_EQ(ReceivePacket(socket.get(), &answer, &none), Received::kPacket);
  EXPECT_EQ(answer.status, KeeperStatus::kOk);
  EXPECT_TRUE(EndsSoon(pid));
}

// ---- the daemon's end ----

class KeeperStoreTest : public KeeperTest {
 protected:
  [[nodiscard]] std::unique_ptr<DescriptorStore> OpenStore(int64_t keep_for_ms = kLongMs) {
    return OpenDescriptorStore({.socket = daemon_socket_,
                                .keep_for_ms = keep_for_ms,
                                .loop = &loop_,
                                .log = &log_,
                                .keeper_program = KVTIER_KEEPER_PATH});
  }

  EventLoop loop_;
  Log log_{LogConfig{}};
};

TEST_F(KeeperStoreTest, TheNextDaemonTakesEachOnce) {
  {
    const auto store = OpenStore();
    EXPECT_FALSE(store->Take(kHostArenaName));
    ASSERT_TRUE(store->Keep(kHostArenaName, MemoryWith("blocks").get()));
    EXPECT_FALSE(store->Take(kHostArenaName)) << "its own";
    EXPECT_EQ(store->entries().at(0).name, kHostArenaName);
    EXPECT_EQ(store->entries().at(0).bytes, 6u);
  }
  const auto store = OpenStore();
  EXPECT_EQ(store->holder().name, "kvtier-keeper");
  EXPECT_EQ(store->holder().until, "1min after the daemon's end");
  EXPECT_EQ(TextOf(store->Take(kHostArenaName)), "blocks");
  EXPECT_FALSE(store->Take(kHostArenaName));
  EXPECT_FALSE(store->Take(kHostTableName));
}

TEST_F(KeeperStoreTest, AKeeperThatIsKilledIsReplacedAndGivenEverythingAgain) {
  int32_t second = 0;
  {
    const auto store = OpenStore();
    ASSERT_TRUE(store->Keep(kHostArenaName, MemoryWith("blocks").get()));
    ASSERT_TRUE(store->Keep(kHostTableName, MemoryWith("table").get()));
    const int32_t first = store->holder().pid;
    ASSERT_GT(first, 0);
    ::kill(first, SIGKILL);
    loop_.RunUntil([&] { return store->holder().pid != 0 && store->holder().pid != first; });
    second = store->holder().pid;
  }
  const auto store = OpenStore();
  EXPECT_EQ(store->holder().pid, second);
  EXPECT_EQ(TextOf(store->Take(kHostArenaName)), "blocks");
  EXPECT_EQ(TextOf(store->Take(kHostTableName)), "table");
}

TEST_F(KeeperStoreTest, AKeeperThatIsStoppedHoldsUpNoCallAndHasEverythingWhenItGoesOn) {
  int32_t pid = 0;
  {
    const auto store = OpenStore();
    ASSERT_TRUE(store->Keep(kHostArenaName, MemoryWith("blocks").get()));
    ASSERT_TRUE(store->Keep(kDiskKeysName, MemoryWith("keys").get()));
    pid = store->holder().pid;
    ::kill(pid, SIGSTOP);
    ASSERT_TRUE(store->Keep(kHostTableName, MemoryWith("table").get()));
    store->Release(kDiskKeysName);
    store->ReleaseUnclaimed();
    EXPECT_EQ(store->holder().pid, pid) << "a call has waited until it was given up";
    loop_.RunUntil([&] { return store->holder().pid == 0; });
    ::kill(pid, SIGCONT);
    loop_.RunUntil([&] { return store->holder().pid != 0; });
  }
  const auto store = OpenStore();
  EXPECT_EQ(store->holder().pid, pid);
  EXPECT_EQ(TextOf(store->Take(kHostArenaName)), "blocks");
  EXPECT_EQ(TextOf(store->Take(kHostTableName)), "table");
  EXPECT_FALSE(store->Take(kDiskKeysName)) << "it was released meanwhile";
}

TEST_F(KeeperStoreTest, AKeeperThatIsStoppedAtTheStartHasEverythingWhenItGoesOn) {
  int32_t pid = 0;
  {
    const auto store = OpenStore();
    ASSERT_TRUE(store->Keep(kHostArenaName, MemoryWith("old blocks").get()));
    pid = store->holder().pid;
  }
  ::kill(pid, SIGSTOP);
  {
    const auto store = OpenStore();
    EXPECT_EQ(store->holder().name, "none");
    EXPECT_TRUE(store->keeps()) << "the arena is to be one that can be kept";
    EXPECT_FALSE(store->Take(kHostArenaName));
    ASSERT_TRUE(store->Keep(kHostArenaName, MemoryWith("blocks").get()));
    ::kill(pid, SIGCONT);
    loop_.RunUntil([&] { return store->holder().pid != 0; });
  }
  const auto store = OpenStore();
  EXPECT_EQ(store->holder().pid, pid);
  EXPECT_EQ(TextOf(store->Take(kHostArenaName)), "blocks");
}

// A keeper that does not go on: those who gave up fill its queue.
TEST_F(KeeperStoreTest, AKeeperThatAcceptsNothingIsWaitedForToo) {
  const int32_t pid = OpenStore()->holder().pid;
  ::kill(pid, SIGSTOP);
  std::vector<UniqueFd> queue;
  while (queue.empty() || queue.back().valid()) {
    queue.push_back(OpenKeeperSocket(place_.socket, /*listening=*/false));
  }
  const auto store = OpenStore();
  EXPECT_TRUE(store->keeps());
  EXPECT_NE(store->holder().reason.find("keeper_silent"), std::string::npos);
  ::kill(pid, SIGCONT);
}

TEST_F(KeeperStoreTest, ADaemonThatIsKilledRightAfterwardsHasKeptEverything) {
  for (int i = 0; i < 20; ++i) {
    const std::string text = "blocks " + std::to_string(i);
    const pid_t daemon = ::fork();
    if (daemon == 0) {
      const auto store = OpenStore();
      for (const std::string_view name : {kHostTableName, kDiskKeysName, kHostArenaName}) {
        (void)store->Keep(name, MemoryWith(text).get());
      }
      ::kill(::getpid(), SIGKILL);
    }
    ASSERT_EQ(::waitpid(daemon, nullptr, 0), daemon);
    const auto store = OpenStore();
    ASSERT_EQ(TextOf(store->Take(kHostArenaName)), text);
  }
}

TEST_F(KeeperStoreTest, ReleasingAllEndsTheKeeper) {
  const auto store = OpenStore();
  ASSERT_TRUE(store->Keep(kHostArenaName, MemoryWith("blocks").get()));
  const int32_t pid = store->holder().pid;
  store->ReleaseAll();
  EXPECT_TRUE(EndsSoon(pid));
  EXPECT_EQ(store->holder().name, "none");
  EXPECT_FALSE(store->Keep(kHostArenaName, MemoryWith("blocks").get()));
  EXPECT_TRUE(store->entries().empty());
}

TEST_F(KeeperStoreTest, WithoutATimeNothingIsKeptAndAnEarlierKeeperEnds) {
  const int32_t pid = OpenStore()->holder().pid;
  const auto store = OpenStore(/*keep_for_ms=*/0);
  EXPECT_EQ(store->holder().name, "none");
  EXPECT_FALSE(store->keeps());
  EXPECT_TRUE(EndsSoon(pid));
  const Status kept = store->Keep(kHostArenaName, MemoryWith("blocks").get());
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().reason, "nothing_keeps");
}

TEST_F(KeeperStoreTest, BesideAnotherDaemonNothingIsKept) {
  const auto first = OpenStore();
  const auto second = OpenStore();
  EXPECT_EQ(second->holder().name, "none");
  EXPECT_NE(second->holder().reason.find("keeper_busy"), std::string::npos);
}

}  // namespace
}  // namespace kvtier
