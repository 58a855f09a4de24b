// SPDX-License-Identifier: Apache-2.0
// Which clients are let in, which are thrown out, and the blocks that they leave behind.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <thread>

#include "daemon/session/acquire_handler.h"
#include "protocol/socket_io.h"
#include "tests/fakes/lingering_socket.h"
#include "tests/fakes/seeded_random.h"
#include "tests/unit/daemon/client_process.h"
#include "tests/unit/daemon/server_under_test.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

TEST(Server, UnknownUserIsToldAndClosed) {
  ServerUnderTest daemon;
  daemon.peers.uid = 12345;
  WireClient stranger(daemon.socket());
  EXPECT_EQ(stranger.ExpectError(0), "unknown_user");
  EXPECT_TRUE(stranger.AtEnd());
  EXPECT_EQ(daemon.Refusals("unknown_user"), 1u);
  daemon.peers.uid = DisguisedPeers::kTrue;
  WireClient known(daemon.socket());
  (void)known.Hello();
}

// Whether the kernel refuses the descriptors or hands them over.
class ServerKernels : public testing::TestWithParam<ServerUnderTest::Kernel> {};

INSTANTIATE_TEST_SUITE_P(All, ServerKernels,
                         testing::Values(ServerUnderTest::Kernel::kRefusesDescriptors,
                                         ServerUnderTest::Kernel::kPassesDescriptors));

size_t OpenDescriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST_P(ServerKernels, LingeringDescriptorsOfAUserOfNoTenantHoldUpNobodyAndLeaveNoneOpen) {
  ServerUnderTest daemon({}, nullptr, GetParam());
  WireClient known(daemon.socket());
  (void)known.Hello();
  const size_t before = OpenDescriptors();
  const auto begun = std::chrono::steady_clock::now();
  daemon.peers.uid = 12345;
  for (int i = 0; i < 20; ++i) {
    const UniqueFd lingering = LingeringSocket().TakeWithinAnother();
    WireClient stranger(daemon.socket());
    stranger.SendWithDescriptor(wire::Ping{}, lingering.get());
    EXPECT_EQ(stranger.ExpectError(0), "unknown_user");
  }
  (void)known.Call<wire::Pong>(wire::Ping{});
  daemon.peers.uid = DisguisedPeers::kTrue;
  WireClient other(daemon.socket());
  (void)other.Hello();
  other.Close();
  // Threads of the closer end, with descriptors of their own, shortly after their work.
  daemon.WaitUntil([&] {
    return daemon.network().closer.pending() == 0 && daemon.server().session_count() == 1 &&
           OpenDescriptors() <= before;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun,
            std::chrono::seconds(LingeringSocket::kLingerSeconds / 2));
}

TEST_P(ServerKernels, ADescriptorBeforeHelloIsNeverReceived) {
  ServerUnderTest daemon({}, nullptr, GetParam());
  const UniqueFd lingering = LingeringSocket().TakeWithinAnother();
  WireClient client(daemon.socket());
  std::vector<std::byte> hello;
  wire::Encode(wire::Hello{.client_name = "early"}, 1, &hello);
  const int sent = lingering.get();
  const auto passed = wire::Send(client.socket(), hello, {&sent, 1});
  if (!passed) return;  // by the kernel
  EXPECT_EQ(client.ExpectError(0), "unexpected_descriptor");
  EXPECT_TRUE(client.AtEnd());
}

TEST(Server, TenantIsFoundByUserThenByGroup) {
  ServerUnderTest daemon([](Config* config) {
    config->tenants = {{.name = "red", .uids = {1001}}, {.name = "blue", .gids = {50}}};
  });
  const auto tenant_of = [&daemon](uint32_t uid, uint32_t gid) {
    daemon.peers.uid = uid;
    daemon.peers.gid = gid;
    WireClient client(daemon.socket());
    return client.Hello().tenant;
  };
  EXPECT_EQ(tenant_of(1001, 50), "red");
  EXPECT_EQ(tenant_of(1002, 50), "blue");
  daemon.peers.uid = 1002;
  daemon.peers.gid = 51;
  WireClient stranger(daemon.socket());
  EXPECT_EQ(stranger.ExpectError(0), "unknown_user");
}

TEST(Server, TenantsDoNotMeet) {
  ServerUnderTest daemon([](Config* config) {
    config->tenants = {{.name = "red", .uids = {1001}}, {.name = "blue", .uids = {1002}}};
    config->cache.pool_bytes = 512 * kKiB;
  });
  daemon.peers.uid = 1001;
  WireClient red(daemon.socket());
  const PoolId red_pool = red.Attach(TestModel(), 0, 256 * kKiB).pool;
  (void)Fill(&red, red_pool, Hashes(0, 4));
  daemon.peers.uid = 1002;
  WireClient blue(daemon.socket());
  const PoolId blue_pool = blue.Attach(TestModel(), 0, 256 * kKiB).pool;
  EXPECT_NE(red_pool, blue_pool);
  EXPECT_EQ(Acquire(&blue, blue_pool, Hashes(0, 4), 1).hits.size(), 0u);
  const auto hashes = Hashes(0, 4);
  EXPECT_EQ(blue.ErrorOf(wire::Acquire{.parts = {{.pool = red_pool, .hashes = hashes}}}),
            "pool_not_attached");
}

TEST(Server, OneClientTooManyIsToldAndClosed) {
  ServerUnderTest daemon([](Config* config) { config->server.max_clients = 2; });
  WireClient first(daemon.socket());
  auto second = std::make_unique<WireClient>(daemon.socket());
  (void)first.Hello();
  (void)second->Hello();
  WireClient third(daemon.socket());
  EXPECT_EQ(third.ExpectError(0), "too_many_clients");
  EXPECT_TRUE(third.AtEnd());
  second.reset();
  daemon.WaitUntil([&] { return daemon.server().session_count() == 1; });
  WireClient fourth(daemon.socket());
  (void)fourth.Hello();
}

TEST(Server, ATenantThatConnectsWithoutEndLeavesPlacesToOthers) {
  ServerUnderTest daemon([](Config* config) {
    config->server.max_clients = 8;
    config->tenants = {{.name = "red", .uids = {1001}}, {.name = "blue", .uids = {1002}}};
  });
  daemon.peers.uid = 1001;
  std::vector<std::unique_ptr<WireClient>> red;
  for (int i = 0; i < 6; ++i) {
    red.push_back(std::make_unique<WireClient>(daemon.socket()));
    (void)red.back()->Hello();
  }
  WireClient refused(daemon.socket());
  EXPECT_EQ(refused.ExpectError(0), "too_many_clients");
  daemon.peers.uid = 1002;
  WireClient first(daemon.socket());
  WireClient second(daemon.socket());
  EXPECT_EQ(first.Hello().tenant, "blue");
  EXPECT_EQ(second.Hello().tenant, "blue");
}

TEST(Server, SilentConnectionIsClosed) {
  ServerUnderTest daemon([](Config* config) { config->server.hello_timeout_ms = 10; });
  WireClient client(daemon.socket());
  EXPECT_EQ(client.ExpectError(0), "hello_timeout");
  EXPECT_TRUE(client.AtEnd());
}

TEST(Server, TooManyModelsAreRefused) {
  ServerUnderTest daemon([](Config* config) { config->server.max_models_per_tenant = 2; });
  WireClient client(daemon.socket());
  (void)client.Hello();
  ModelRecord record = TestModel();
  const auto first = client.Call<wire::RegisterModelReply>(wire::RegisterModel{record});
  ASSERT_EQ(first.groups.size(), 1u);
  EXPECT_EQ(first.groups[0].block_bytes, 4096u);
  EXPECT_EQ(first.groups[0].fingerprint, record.GroupFingerprint(0));
  record.revision = "second";
  EXPECT_NE(client.Call<wire::RegisterModelReply>(wire::RegisterModel{record}).model, first.model);
  record.revision = "third";
  EXPECT_EQ(client.ErrorOf(wire::RegisterModel{record}), "too_many_models");
  // A known model stays known.
  EXPECT_EQ(client.Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()}).model,
            first.model);
}

TEST(Server, ASessionThatHasEndedUsesNoModel) {
  ServerUnderTest daemon([](Config* config) { config->server.max_models_per_tenant = 1; });
  ModelRecord record = TestModel();
  for (int i = 0; i < 200; ++i) {
    {
      WireClient client(daemon.socket());
      (void)client.Hello();
      record.revision = fmt::format("epoch {}", i);
      const auto reply = client.Call<wire::RegisterModelReply>(wire::RegisterModel{record});
      EXPECT_EQ(reply.model.value, static_cast<uint32_t>(i) + 1);
    }
    daemon.WaitUntil([&] { return daemon.server().session_count() == 0; });
  }
}

TEST(Server, OneSessionMayRegisterModelAfterModelWithoutAnEnd) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  (void)client.Hello();
  ModelRecord record = TestModel();
  for (uint32_t i = 0; i < 10'000; ++i) {
    record.revision = fmt::format("epoch {}", i);
    const auto reply = client.Call<wire::RegisterModelReply>(wire::RegisterModel{record});
    ASSERT_EQ(reply.model.value, i + 1);
  }
}

// Keeps the loop busy from several connections of the user that connects now.
class Flood {
 public:
  Flood(ServerUnderTest* daemon, int connections) : hashes_(Hashes(0, 16'384)) {
    for (int i = 0; i < connections; ++i) {
      auto client = std::make_unique<WireClient>(daemon->socket());
      const PoolId pool = client->Attach(TestModel(), 0, 64 * kKiB).pool;
      threads_.emplace_back([this, pool, client = std::move(client)] {
        while (!stopped_) {
          (void)client->Call<wire::LookupReply>(wire::Lookup{.pool = pool, .hashes = hashes_});
          ++requests_;
        }
      });
    }
  }
  ~Flood() {
    stopped_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  [[nodiscard]] int requests() const { return requests_; }

 private:
  const std::vector<BlockHash> hashes_;
  std::atomic<bool> stopped_ = false;
  std::atomic<int> requests_ = 0;
  std::vector<std::thread> threads_;
};

TEST(Server, AClientThatHasWorkedAloneForLongIsServedAmongTheFloodsOfOthers) {
  ServerUnderTest daemon([](Config* config) {
    config->tenants = {{.name = "red", .uids = {1001}}, {.name = "blue", .uids = {1002}}};
    config->cache.pool_bytes = 512 * kKiB;
  });
  daemon.peers.uid = 1001;
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach(TestModel(), 0, 64 * kKiB).pool;
  const auto hashes = Hashes(0, 16'384);
  // Some 8,000 turns: as a debt that others had to catch up with, 500 of their requests.
  for (int i = 0; i < 500; ++i) {
    (void)client.Call<wire::LookupReply>(wire::Lookup{.pool = pool, .hashes = hashes});
  }
  daemon.peers.uid = 1002;
  Flood flood(&daemon, 3);
  while (flood.requests() < 6) std::this_thread::yield();
  const int before = flood.requests();
  constexpr int kPings = 20;
  for (int i = 0; i < kPings; ++i) (void)client.Call<wire::Pong>(wire::Ping{});
  // Each takes 16 turns. All pings together, because the scheduler may hold up one of them.
  EXPECT_LE(flood.requests() - before, 12 * kPings);
}

// Asks for much and reads nothing, until the daemon closes the connection.
void AskUntilCut(WireClient* client, PoolId pool) {
  const auto hashes = Hashes(0, 8192);
  std::vector<std::byte> frame;
  wire::Encode(wire::Lookup{.pool = pool, .hashes = hashes}, 1, &frame);
  while (::send(client->socket(), frame.data(), frame.size(), MSG_NOSIGNAL) > 0) {
  }
}

TEST(Server, SlowReaderIsCutOffAndItsReferencesGo) {
  ServerUnderTest daemon([](Config* config) {
    config->server.slow_reader_timeout_ms = 50;
    config->server.max_outbound_bytes_per_client = 64 * kKiB;
  });
  WireClient slow(daemon.socket());
  const PoolId pool = slow.Attach().pool;
  (void)Fill(&slow, pool, Hashes(0, 8));
  WireClient other(daemon.socket());
  (void)other.Attach();
  AskUntilCut(&slow, pool);
  daemon.WaitUntil([&] { return daemon.server().session_count() == 1; });
  EXPECT_EQ(daemon.Refusals("slow_reader"), 1u);
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().references, 0u); });
  EXPECT_EQ(Acquire(&other, pool, Hashes(0, 8), 0).hits.size(), 8u);
}

TEST(Server, ClientThatReadsLateGetsEverything) {
  ServerUnderTest daemon(
      [](Config* config) { config->server.max_outbound_bytes_per_client = 64 * kKiB; });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  const auto hashes = Hashes(0, 8192);
  std::vector<uint64_t> requests;
  std::vector<std::byte> frames;
  constexpr int kRequests = 200;  // 1.6 MiB of replies
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) {
      std::vector<std::byte> frame;
      wire::Encode(wire::Lookup{.pool = pool, .hashes = hashes}, 1000 + i, &frame);
      client.SendBytes(frame);
    }
  });
  for (int i = 0; i < kRequests; ++i) {
    const auto received = client.Receive();
    ASSERT_TRUE(received);
    EXPECT_TRUE(received->Is(wire::MessageType::kLookupReply));
    EXPECT_EQ(received->request_id, 1000u + i);
  }
  sender.join();
}

// Blocks that no session holds, but that must be copied to host memory before they can be given
// away.
PoolId FillWithUnsavedBlocks(WireClient* client) {
  const PoolId pool = client->Attach().pool;
  const auto blocks = Fill(client, pool, Hashes(0, 64));
  client->Send(wire::Release{.pool = pool, .blocks = blocks}, /*want_reply=*/true);
  EXPECT_TRUE(client->Expect<wire::ReleaseReply>().errors.empty());
  return pool;
}

TEST(Server, MoreAcquiresThanMayWaitAreAllAnswered) {
  // Acquires for which there is no room are refused at the end of their wait.
  ServerUnderTest daemon([](Config* config) { config->cache.max_wait_ms = 100; });
  WireClient client(daemon.socket());
  const PoolId pool = FillWithUnsavedBlocks(&client);
  std::set<uint64_t> unanswered;
  for (uint32_t i = 0; i < 3 * kMaxAcquiresInFlight; ++i) {
    unanswered.insert(client.Send(wire::Acquire{.parts = {{.pool = pool, .new_blocks = 1}}}));
  }
  uint32_t granted = 0;
  while (!unanswered.empty()) {
    const auto received = client.Receive();
    ASSERT_TRUE(received);
    EXPECT_EQ(unanswered.erase(received->request_id), 1u);
    if (received->Is(wire::MessageType::kAcquireReply)) ++granted;
  }
  EXPECT_EQ(granted, 64u);
}

TEST(Server, ClientMayLeaveRightAfterAsking) {
  ServerUnderTest daemon;
  for (int round = 0; round < 20; ++round) {
    WireClient client(daemon.socket());
    const PoolId pool = FillWithUnsavedBlocks(&client);
    const auto hashes = Hashes(0, 32);
    client.Send(wire::Acquire{.parts = {{.pool = pool, .new_blocks = 32, .hashes = hashes}}});
    client.Close();
    daemon.WaitUntil([&] { return daemon.server().session_count() == 0; });
    // The blocks that it was given are its process's until that is gone: this one, which does no
    // harm.
    daemon.OnLoop([&] {
      for (uint64_t id = 1; id <= 20; ++id) daemon.cache().ReleaseQuarantine(SessionId(id));
      EXPECT_EQ(daemon.cache().Gauges().references, 0u);
    });
  }
}

TEST(Server, GarbageHarmsNobodyElse) {
  ServerUnderTest daemon;
  WireClient bystander(daemon.socket());
  const PoolId pool = bystander.Attach().pool;
  (void)Fill(&bystander, pool, Hashes(0, 8));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SeededRandom random(seed);
    WireClient client(daemon.socket());
    if (seed % 2 == 0) (void)client.Attach();
    std::vector<std::byte> garbage(1 + random.Below(2000));
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random.Below(256));
    if (seed % 4 == 0) {
      // A frame that is one, of a known type.
      client.SendFrame(static_cast<uint16_t>(3 + random.Below(40)), 0, garbage);
    } else {
      client.SendBytes(garbage);
    }
  }
  EXPECT_EQ(Acquire(&bystander, pool, Hashes(0, 8), 0).hits.size(), 8u);
}

TEST(Server, SocketIsOpenToEveryone) {
  ServerUnderTest daemon;
  struct stat status;
  ASSERT_EQ(::stat(daemon.socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
}

TEST(Server, ShutDownIsTold) {
  ServerUnderTest daemon;
  WireClient client(daemon.socket());
  (void)client.Hello();
  daemon.OnLoop([&] {
    daemon.server().CloseSessions({ErrorCode::kUnavailable, "shutting_down", ""});
  });
  EXPECT_EQ(client.ExpectError(0), "shutting_down");
  EXPECT_TRUE(client.AtEnd());
}

// Returns how long after the end of a process its references were gone, though a child of it has
// its socket, as data loaders do that are forked from an engine.
std::chrono::nanoseconds TimeUntilReferencesGo() {
  ClientProcess engine([](const std::string& socket, const auto& answer) {
    WireClient client(socket);
    (void)Fill(&client, client.Attach().pool, Hashes(0, 8));
    const pid_t loader = ::fork();
    while (loader == 0) ::pause();
    answer(loader);
  });
  ServerUnderTest daemon;
  const pid_t loader = engine.Start(daemon.socket());
  EXPECT_GT(loader, 0);
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().references, 8u); });
  engine.Kill();
  const auto killed = std::chrono::steady_clock::now();
  daemon.WaitUntil([&] { return daemon.server().session_count() == 0; });
  daemon.OnLoop([&] { EXPECT_EQ(daemon.cache().Gauges().references, 0u); });
  const auto lasted = std::chrono::steady_clock::now() - killed;
  EXPECT_TRUE(loader > 0 && ::kill(loader, SIGKILL) == 0);
  return lasted;
}

TEST(Server, ASessionEndsWithItsProcessThoughAChildHasItsSocket) {
  // A busy machine adds to some of these times, and takes nothing away.
  constexpr int kTries = 8;
  std::chrono::nanoseconds fastest = std::chrono::hours(1);
  for (int i = 0; i < kTries && fastest >= std::chrono::seconds(1); ++i) {
    fastest = std::min(fastest, TimeUntilReferencesGo());
  }
  EXPECT_LT(fastest, std::chrono::seconds(1));
}

TEST(Quarantine, PrivateBlocksAreWithheldUntilTheProcessIsGone) {
  // Takes 60 of 64 blocks, closes the connection and lives on.
  ClientProcess holder([](const std::string& socket, const auto& answer) {
    auto client = std::make_unique<WireClient>(socket);
    const PoolId pool = client->Attach().pool;
    const auto taken = static_cast<int>(Acquire(client.get(), pool, {}, 60).new_blocks.size());
    client.reset();
    answer(taken);
  });
  ServerUnderTest daemon;
  ASSERT_EQ(holder.Start(daemon.socket()), 60);
  daemon.WaitUntil([&] { return daemon.server().quarantined_sessions() == 1; });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  EXPECT_EQ(client.ErrorOf(wire::Acquire{.parts = {{.pool = pool, .new_blocks = 60}}}),
            "pool_full");
  EXPECT_EQ(Acquire(&client, pool, {}, 4).new_blocks.size(), 4u);

  holder.Kill();
  daemon.WaitUntil([&] { return daemon.server().quarantined_sessions() == 0; });
  EXPECT_EQ(Acquire(&client, pool, {}, 60).new_blocks.size(), 60u);
}

TEST(Quarantine, ASessionThatGaveAllItsBlocksBackKeepsNothingFromUse) {
  // Takes blocks, gives them back, closes the connection and lives on.
  ClientProcess holder([](const std::string& socket, const auto& answer) {
    auto client = std::make_unique<WireClient>(socket);
    const PoolId pool = client->Attach().pool;
    const auto taken = Acquire(client.get(), pool, {}, 60).new_blocks;
    client->Send(wire::Release{.pool = pool, .blocks = taken}, /*want_reply=*/true);
    (void)client->Expect<wire::ReleaseReply>();
    client.reset();
    answer(static_cast<int>(taken.size()));
  });
  ServerUnderTest daemon;
  ASSERT_EQ(holder.Start(daemon.socket()), 60);
  daemon.WaitUntil([&] { return daemon.server().session_count() == 0; });
  daemon.OnLoop([&] { EXPECT_EQ(daemon.server().quarantined_sessions(), 0u); });
  WireClient client(daemon.socket());
  const PoolId pool = client.Attach().pool;
  EXPECT_EQ(Acquire(&client, pool, {}, 64).new_blocks.size(), 64u);
}

}  // namespace
}  // namespace kvtier
