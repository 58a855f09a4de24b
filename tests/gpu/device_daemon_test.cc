// SPDX-License-Identifier: Apache-2.0
// A whole daemon whose pool is on a GPU, and clients in other processes.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "base/executor.h"
#include "base/units.h"
#include "gpu/cuda_device.h"
#include "tests/gpu/gpu_daemon_fixture.h"
#include "tests/integration/harness/program.h"
#include "tools/replay/replay_client.h"
#include "tools/support/admin.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kAdminSilenceMs = 60'000;
constexpr double kGoneWithinSeconds = 1.0;

class DeviceDaemonTest : public GpuDaemonFixture {
 protected:
  void StartDaemon() {
    GpuDaemonFixture::StartDaemon({"pool.device=cuda:0", "pool.bytes=24MiB", "host.bytes=48MiB",
                                   "disk.bytes=512MiB", "cache.slab_bytes=2MiB",
                                   "disk.free_floor_bytes=0B", "retention.persist_after=0s",
                                   "cache.max_wait_ms=5000"});
  }

  // Conversations that come back, more of them than pool and host hold.
  std::string WriteTrace(int requests) {
    const std::string path = directory_->path() + "/trace.jsonl";
    std::ofstream file(path);
    for (int i = 0; i < requests; ++i) {
      const int blocks = 1 + i * 7 % 40;
      file << R"({"timestamp": )" << i << R"(, "input_length": )" << 512 * blocks
           << R"(, "hash_ids": [)";
      for (int j = 0; j < blocks; ++j) file << (j > 0 ? "," : "") << (i * 13 % 61) * 100 + j;
      file << "]}\n";
    }
    return path;
  }

  std::vector<std::string> ReplayCommand(const std::string& trace) const {
    return {ProgramBeside("kvtierctl"),
            "--socket",
            daemon_->socket(),
            "--json",
            "replay",
            trace,
            "--clients",
            "4",
            "--block-bytes",
            "64KiB"};
  }

  boost::json::value Admin(const std::string& operation) {
    const auto reply =
        CallAdmin(daemon_->admin_socket(), R"({"op":")" + operation + R"("})", kAdminSilenceMs);
    EXPECT_TRUE(reply) << reply.error().ToString();
    return reply ? boost::json::parse(*reply) : boost::json::value();
  }

  // No session holds anything, and every block is free or cached.
  bool IsQuiet() {
    const boost::json::value document = Admin("status");
    const JsonView status(&document);
    bool quiet = status["references"].Count() == 0 && status["sessions"]["count"].Count() == 0 &&
                 status["sessions"]["quarantined"].Count() == 0;
    status["pools"].ForEach([&quiet](JsonView pool) {
      quiet = quiet && pool["free"].Count() + pool["cached"].Count() == pool["blocks"].Count();
    });
    return quiet;
  }
};

DeviceInfo OpenedGpu() {
  BlockingLoop loop;
  const auto device = OpenCudaDevice({}, &loop);
  EXPECT_TRUE(device) << device.error().ToString();
  return device ? (*device)->info() : DeviceInfo{};
}

TEST_F(DeviceDaemonTest, StatusTellsTheDevice) {
  StartDaemon();
  const boost::json::value document = Admin("status");
  const JsonView device = JsonView(&document)["device"];
  EXPECT_EQ(device["kind"].Text(), "cuda");
  EXPECT_EQ(device["configured"].Text(), "cuda:0");
  EXPECT_EQ(device["reason"].Text(), "configured");
}

TEST_F(DeviceDaemonTest, APoolLargerThanTheGpuIsAConfigurationErrorWithNumbers) {
  const auto daemon = PrivateDaemon::Start(
      OptionsWith({"pool.device=cuda:0", "pool.bytes=100TiB", "host.bytes=64MiB"}));
  ASSERT_FALSE(daemon);
  const DeviceInfo gpu = OpenedGpu();
  for (const std::string& part : {std::string("pool_exceeds_vram"),
                                  fmt::format("pool.bytes is 100.0 TiB, the GPU cuda:0 ({}) has {}",
                                              gpu.name, FormatByteSize(gpu.total_bytes)),
                                  std::string("lower it")}) {
    EXPECT_NE(daemon.error().context.find(part), std::string::npos)
        << part << " in: " << daemon.error().context;
  }
}

TEST_F(DeviceDaemonTest, FourClientProcessesGetTheRightBytesFromAllTiers) {
  StartDaemon();
  const ProgramResult played = RunProgram(ReplayCommand(WriteTrace(1500)));
  ASSERT_EQ(played.exit_code, 0) << played.output << played.errors;
  const boost::json::value document = boost::json::parse(played.output);
  const JsonView report(&document);
  EXPECT_EQ(report["wrong_blocks"].Count(), 0u);
  for (const char* tier : {"pool", "host", "disk"}) {
    EXPECT_GT(report["blocks"][tier].Count(), 0u) << tier << ": " << played.output;
  }
}

TEST_F(DeviceDaemonTest, ARestartedDaemonServesFromDisk) {
  StartDaemon();
  const std::string trace = WriteTrace(200);
  ASSERT_EQ(RunProgram(ReplayCommand(trace)).exit_code, 0);
  (void)Admin("drain");
  daemon_->Kill();
  ASSERT_TRUE(daemon_->Restart());
  const ProgramResult played = RunProgram(ReplayCommand(trace));
  ASSERT_EQ(played.exit_code, 0) << played.output << played.errors;
  const boost::json::value document = boost::json::parse(played.output);
  const JsonView report(&document);
  EXPECT_EQ(report["wrong_blocks"].Count(), 0u);
  EXPECT_EQ(report["blocks"]["miss"].Count(), 0u) << played.output;
  EXPECT_GT(report["blocks"]["disk"].Count(), 0u);
}

// KVTIER_GPU_KILLS sets how many; each takes most of a second.
TEST_F(DeviceDaemonTest, KilledClientsLeakNothing) {
  const char* const asked = std::getenv("KVTIER_GPU_KILLS");
  const int kills = asked == nullptr ? 5 : std::atoi(asked);
  StartDaemon();
  std::vector<std::string> arguments = ReplayCommand(WriteTrace(100'000));
  std::mt19937_64 random(1);
  for (int kill = 1; kill <= kills && !HasFailure(); ++kill) {
    const pid_t victim = ::fork();
    ASSERT_GE(victim, 0);
    if (victim == 0) {
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    // A victim needs about half a second until it writes; the life is drawn, nothing is awaited.
    std::this_thread::sleep_for(std::chrono::milliseconds(400 + random() % 400));
    ::kill(victim, SIGKILL);
    int status = 0;
    ::waitpid(victim, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the victim ended by itself: " << WEXITSTATUS(status);
    const auto start = SteadyClock::now();
    bool quiet = false;
    double seconds = 0;
    do {
      quiet = IsQuiet();
      seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
    } while (!quiet && seconds < kGoneWithinSeconds);
    EXPECT_TRUE(quiet) << "kill " << kill;
  }
  const ProgramResult played = RunProgram(ReplayCommand(WriteTrace(100)));
  EXPECT_EQ(played.exit_code, 0) << played.output << played.errors;
}

// Its blocks stay out of use for as long as a child keeps its kernels alive, and no longer.
TEST_F(DeviceDaemonTest, AKilledClientIsGoneWhenItsKernelsAre) {
  StartDaemon();
  int output[2] = {-1, -1};
  ASSERT_EQ(::pipe(output), 0);
  const std::string peer = ProgramBeside("gpu_pool_peer"), socket = daemon_->socket();
  const pid_t victim = ::fork();
  ASSERT_GE(victim, 0);
  if (victim == 0) {
    ::dup2(output[1], STDOUT_FILENO);
    ::execl(peer.c_str(), peer.c_str(), socket.c_str(), "0", "session", "0", nullptr);
    ::_exit(127);
  }
  char byte = 0;
  ASSERT_EQ(::read(output[0], &byte, 1), 1) << "it did not get to work";
  if (!HoldsVramOf(0, victim).value_or(false)) GTEST_SKIP() << "the driver does not tell";
  ::kill(victim, SIGKILL);
  ::waitpid(victim, nullptr, 0);
  const auto start = SteadyClock::now();
  const auto seconds = [&start] {
    return std::chrono::duration<double>(SteadyClock::now() - start).count();
  };
  const auto sessions = [this](const char* which) {
    const boost::json::value status = Admin("status");
    return JsonView(&status)["sessions"][which].Count();
  };
  while (sessions("count") > 0 && seconds() < kGoneWithinSeconds) {
  }
  EXPECT_EQ(sessions("count"), 0u) << "the child has its socket, but is not it";
  while (seconds() < 2) ASSERT_EQ(sessions("quarantined"), 1u) << "after " << seconds() << " s";
  // The child lives for five seconds.
  while (!IsQuiet() && seconds() < 8) {
  }
  EXPECT_TRUE(IsQuiet());
  std::printf("quiet after %.2f s\n", seconds());
  ::close(output[0]);
  ::close(output[1]);
}

// Plays conversations of the trace's shape until it is over; a lost daemon is a miss.
ReplayReport PlayUntil(const std::atomic<bool>& over, const std::string& socket, uint64_t seed) {
  ReplayTarget target;
  target.socket = socket;
  target.block_bytes = 64 * kKiB;
  target.reconnect_max_ms = 20;
  auto client = ReplayClient::Connect(target, 512);
  EXPECT_TRUE(client) << client.error().ToString();
  std::mt19937_64 random(seed);
  while (client && !over) {
    TraceRequest request;
    const uint64_t conversation = random() % 40;
    for (uint64_t i = 0; i < 1 + conversation; ++i) {
      request.hashes.push_back(BlockHash{});
      std::memcpy(request.hashes.back().bytes.data(), &conversation, sizeof(conversation));
      std::memcpy(request.hashes.back().bytes.data() + 8, &i, sizeof(i));
    }
    request.input_tokens = static_cast<uint32_t>(512 * request.hashes.size());
    EXPECT_TRUE(client->Play(request));
  }
  return client ? client->Finish() : ReplayReport{};
}

TEST_F(DeviceDaemonTest, KilledDaemonsComeBackWithWhatIsOnDiskAndNoWrongByte) {
  const char* const asked = std::getenv("KVTIER_GPU_KILLS");
  const int kills = std::min(20, asked == nullptr ? 3 : std::atoi(asked));
  StartDaemon();
  std::atomic<bool> over = false;
  std::vector<ReplayReport> reports(2);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < reports.size(); ++i) {
    clients.emplace_back([&, i] { reports[i] = PlayUntil(over, daemon_->socket(), i); });
  }
  std::mt19937_64 random(1);
  for (int kill = 1; kill <= kills && !HasFailure(); ++kill) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + random() % 300));
    daemon_->Kill();
    const Status restarted = daemon_->Restart();
    EXPECT_TRUE(restarted) << restarted.error().ToString();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  over = true;
  ReplayReport total;
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].join();
    total.Add(reports[i]);
  }
  EXPECT_EQ(total.wrong_blocks, 0u);
  EXPECT_EQ(total.errors, 0u);
  EXPECT_GT(total.requests_without_daemon, 0u);
  EXPECT_GT(total.blocks.hit[static_cast<int>(Tier::kDisk)], 0u);
  std::printf("%d kills; %s\n", kills, total.ToJson().c_str());
}

}  // namespace
}  // namespace kvtier
