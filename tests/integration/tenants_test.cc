// SPDX-License-Identifier: Apache-2.0
// Tenants under load from one another: each a user of its own, as the kernel tells it.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <thread>

#include "base/posix.h"
#include "base/result.h"
#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr uid_t kSteadyUid = 61001;
constexpr uid_t kGreedyUid = 61002;
constexpr uid_t kCrowdUid = 61003;

// The steady tenant's blocks: more than its pool holds, as many as are reserved for it on disk.
constexpr size_t kPrompts = 15;
constexpr size_t kPromptBlocks = 10;
constexpr uint64_t kFewestRounds = 6;
// Requests of the others: they store more than all tiers hold.
constexpr uint64_t kGreedyRequests = 40;
constexpr uint64_t kCrowdRequests = 80;
constexpr uint64_t kPoolBytes = 64 * kTestBlockBytes;
constexpr uint64_t kGreedyHostBytes = 10 * kTestSlabBytes;
constexpr uint64_t kGreedyDiskBytes = 30 * kTestSlabBytes;
constexpr uint64_t kSteadyHostBytes = 20 * kTestSlabBytes;
constexpr uint64_t kSteadyDiskBytes = 50 * kTestSlabBytes;

// Root is there for the check that the daemon serves.
std::string ConfigText() {
  return fmt::format(
      R"([[tenant]]
name = "steady"
uids = [{}]
host_reserved_bytes = "{}B"
disk_reserved_bytes = "{}B"
[[tenant]]
name = "greedy"
uids = [{}]
pool_max_bytes = "{}B"
host_max_bytes = "{}B"
disk_max_bytes = "{}B"
[[tenant]]
name = "crowd"
users = ["root"]
uids = [{}]
)",
      kSteadyUid, kSteadyHostBytes, kSteadyDiskBytes, kGreedyUid, kPoolBytes, kGreedyHostBytes,
      kGreedyDiskBytes, kCrowdUid);
}

// The report of a client's process at its end.
struct ClientOutcome {
  uint64_t requests = 0, asked = 0, miss = 0, wrong = 0;
  bool failed = false;
};

// A client in a process of its own, as another user.
class ClientProcess {
 public:
  ClientProcess(uid_t uid, const std::string& socket,
                const std::function<Status(ReplayClient*, const std::function<bool()>&)>& play) {
    int ends[2];
    int stop[2];
    KVT_CHECK(::pipe(ends) == 0 && ::pipe(stop) == 0);
    pid_ = ::fork();
    KVT_CHECK(pid_ >= 0);
    outcome_ = UniqueFd(ends[0]);
    stop_ = UniqueFd(stop[1]);
    // Kept here, too: a client that has ended by itself may still be told to.
    stopped_ = UniqueFd(stop[0]);
    const UniqueFd tell(ends[1]);
    if (pid_ > 0) return;
    const ClientOutcome outcome = Run(uid, socket, play, stopped_.get());
    const bool told = ::write(tell.get(), &outcome, sizeof(outcome)) == sizeof(outcome);
    ::_exit(told && !outcome.failed ? 0 : 1);
  }
  ~ClientProcess() {
    if (pid_ > 0) (void)Finish();
  }
  ClientProcess(const ClientProcess&) = delete;
  ClientProcess& operator=(const ClientProcess&) = delete;

  // Asks the client to end, if it goes on until then, and waits for it.
  ClientOutcome Finish() {
    // Not by closing: processes that were forked later hold this end, too.
    (void)!::write(stop_.get(), "", 1);
    ClientOutcome outcome{.failed = true};
    (void)!::read(outcome_.get(), &outcome, sizeof(outcome));
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    outcome.failed |= status != 0;
    return outcome;
  }
  [[nodiscard]] bool ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }

 private:
  static ClientOutcome Run(
      uid_t uid, const std::string& socket,
      const std::function<Status(ReplayClient*, const std::function<bool()>&)>& play, int stop) {
    ClientOutcome outcome{.failed = true};
    if (::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0) return outcome;
    ReplayTarget target;
    target.socket = socket;
    target.block_bytes = kTestBlockBytes;
    target.pool_bytes = kPoolBytes;
    auto client = ReplayClient::Connect(target, kTestBlockTokens);
    if (!client) return outcome;
    // The parent writes a byte to say that it is enough.
    const auto over = [stop] {
      pollfd ready{stop, POLLIN, 0};
      return ::poll(&ready, 1, 0) > 0;
    };
    const Status played = play(&*client, over);
    const ReplayReport& report = client->Finish();
    return {.requests = report.requests,
            .asked = report.blocks.asked,
            .miss = report.blocks.miss,
            .wrong = report.wrong_blocks,
            .failed = !played.has_value()};
  }

  pid_t pid_ = -1;
  UniqueFd outcome_;
  UniqueFd stop_;
  UniqueFd stopped_;
};

class TenantsTest : public DaemonTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can run clients as other users";
    DaemonTest::SetUp();
    ASSERT_EQ(::chmod(directory().c_str(), 0755), 0);
    const std::string file = directory() + "/kvtierd.toml";
    std::ofstream(file) << ConfigText();
    StartDaemon({.pool_blocks = 200, .host_blocks = 120, .disk_blocks = 400}, {}, file);
  }

  // Plays so many different prompts.
  static Status Play(ReplayClient* client, const std::string& name, uint64_t prompts) {
    for (uint64_t i = 0; i < prompts; ++i) {
      KVT_RETURN_IF_ERROR(client->Play(Prompt(fmt::format("{} {}", name, i), kPromptBlocks)));
    }
    return {};
  }
  // Plays the same prompts again and again, until told to stop.
  static Status PlayInRounds(ReplayClient* client, const std::string& name,
                             const std::function<bool()>& over) {
    for (uint64_t round = 0; round < kFewestRounds || !over(); ++round) {
      KVT_RETURN_IF_ERROR(Play(client, name, kPrompts));
    }
    return {};
  }

  // By tenant and tier: {used, cap, reserved}.
  [[nodiscard]] JsonView Tenant(const boost::json::value& status, std::string_view name) {
    JsonView found;
    JsonView(&status)["tenants"].ForEach([&](JsonView tenant) {
      if (tenant["name"].Text() == name) found = tenant;
    });
    return found;
  }
  // Looks at caps and reserves until `enough` says so; the number of looks.
  int WatchUntil(const std::function<bool()>& enough) {
    int looks = 0;
    for (; !enough(); ++looks) {
      const boost::json::value status = Admin("status");
      const JsonView greedy = Tenant(status, "greedy");
      EXPECT_LE(greedy["pool"]["used_bytes"].Count(), kPoolBytes);
      EXPECT_LE(greedy["host"]["used_bytes"].Count(), kGreedyHostBytes);
      EXPECT_LE(greedy["disk"]["used_bytes"].Count(), kGreedyDiskBytes);
      const JsonView steady = Tenant(status, "steady");
      EXPECT_GE(steady["disk"]["used_bytes"].Count(),
                kPrompts * kPromptBlocks * (kTestBlockBytes + 4 * kKiB));
    }
    return looks;
  }
};

TEST_F(TenantsTest, UnderLoadOfOthersCapsHoldAndWhatIsReservedStays) {
  ClientProcess first(kSteadyUid, daemon().socket(), [](ReplayClient* client, const auto&) {
    return Play(client, "s", kPrompts);
  });
  const ClientOutcome stored = first.Finish();
  ASSERT_FALSE(stored.failed);
  EXPECT_EQ(stored.miss, kPrompts * kPromptBlocks);
  ASSERT_EQ(Ctl({"drain"}).exit_code, 0);

  const auto store = [](const std::string& name, uint64_t prompts) {
    return
        [name, prompts](ReplayClient* client, const auto&) { return Play(client, name, prompts); };
  };
  ClientProcess greedy(kGreedyUid, daemon().socket(), store("g", kGreedyRequests));
  ClientProcess crowd(kCrowdUid, daemon().socket(), store("c", kCrowdRequests));
  ClientProcess steady(kSteadyUid, daemon().socket(), [](ReplayClient* client, const auto& over) {
    return PlayInRounds(client, "s", over);
  });
  EXPECT_GT(WatchUntil([&] { return greedy.ended() && crowd.ended(); }), 3);
  const ClientOutcome served = steady.Finish();
  const ClientOutcome capped = greedy.Finish();
  const ClientOutcome others = crowd.Finish();

  EXPECT_FALSE(served.failed || capped.failed || others.failed);
  EXPECT_GE(served.asked, kFewestRounds * kPrompts * kPromptBlocks);
  EXPECT_EQ(served.miss, 0u) << "of what is reserved nothing may be lost to others";
  EXPECT_EQ(served.wrong + capped.wrong + others.wrong, 0u);
  EXPECT_EQ(capped.requests, kGreedyRequests);
  EXPECT_EQ(others.requests, kCrowdRequests);
  const boost::json::value status = Admin("status");
  EXPECT_GT(JsonView(&status)["tiers"]["disk"]["used_bytes"].Count(),
            kSteadyDiskBytes + kGreedyDiskBytes);
}

TEST_F(TenantsTest, StatusShowsWhatEachTenantHasAndMayHave) {
  // The connection by which the start was seen is the crowd's.
  ASSERT_TRUE(
      Eventually([this] { return Admin("status").at("sessions").at("list").as_array().empty(); }));
  const ProgramResult shown = Ctl({"status"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_NE(shown.output.find("steady"), std::string::npos) << shown.output;
  EXPECT_NE(shown.output.find("reserved"), std::string::npos) << shown.output;
  EXPECT_EQ(shown.output.find("crowd"), std::string::npos) << "it has no quotas";
}

TEST_F(TenantsTest, ReloadChangesCapsAndSaysWhatWaitsForARestart) {
  std::string text = ConfigText();
  const auto replace = [&text](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
  };
  replace(fmt::format("host_max_bytes = \"{}B\"", kGreedyHostBytes), "host_max_bytes = \"128KiB\"");
  replace(fmt::format("host_reserved_bytes = \"{}B\"", kSteadyHostBytes),
          "host_reserved_bytes = \"64KiB\"");
  std::ofstream(directory() + "/kvtierd.toml") << text;
  ASSERT_EQ(::kill(daemon().pid(), SIGHUP), 0);
  const auto cap = [this] {
    const boost::json::value status = Admin("status");
    return Tenant(status, "greedy")["host"]["max_bytes"].Count();
  };
  while (cap() != 128 * kKiB) std::this_thread::yield();
  const boost::json::value status = Admin("status");
  EXPECT_EQ(Tenant(status, "steady")["host"]["reserved_bytes"].Count(), kSteadyHostBytes);
  std::ifstream file(daemon().log_path());
  const std::string log((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(log.find("[[tenant]] \"steady\" host_reserved_bytes: \"64KiB\" is wanted"),
            std::string::npos)
      << log;
}

}  // namespace
}  // namespace kvtier
