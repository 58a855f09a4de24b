// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/player.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/posix.h"
#include "tools/bench/gpu/bench_daemon.h"

namespace kvtier {
namespace {

constexpr uint64_t kConversations = 40;
constexpr int kReadyTimeoutMs = 30'000;

}  // namespace

Result<PrivateDaemon> StartPlayedDaemon(const GpuBenchOptions& options) {
  // The conversations take 51 MiB together.
  return StartGpuDaemon(options, {"pool.bytes=24MiB", "host.bytes=16MiB", "disk.bytes=512MiB",
                                  "cache.slab_bytes=2MiB", "disk.free_floor_bytes=0B",
                                  "retention.persist_after=0s", "cache.max_wait_ms=5000"});
}

Result<ReplayClient> ConnectPlayer(const std::string& socket) {
  ReplayTarget target;
  target.socket = socket;
  target.block_bytes = kPlayedBlockBytes;
  target.reconnect_max_ms = 20;
  return ReplayClient::Connect(target, kPlayedBlockTokens);
}

TraceRequest DrawConversation(std::mt19937_64* random) {
  TraceRequest request;
  const uint64_t conversation = (*random)() % kConversations;
  for (uint64_t i = 0; i < 1 + conversation; ++i) {
    BlockHash& hash = request.hashes.emplace_back();
    std::memcpy(hash.bytes.data(), &conversation, sizeof(conversation));
    std::memcpy(hash.bytes.data() + sizeof(conversation), &i, sizeof(i));
  }
  request.input_tokens = static_cast<uint32_t>(kPlayedBlockTokens * request.hashes.size());
  return request;
}

Status PlayForever(const std::string& socket, uint64_t seed, int ready_fd) {
  KVT_ASSIGN_OR_RETURN(ReplayClient client, ConnectPlayer(socket));
  std::mt19937_64 random(seed);
  for (bool first = true;; first = false) {
    KVT_RETURN_IF_ERROR(client.Play(DrawConversation(&random)));
    if (first && ::write(ready_fd, "", 1) != 1) {
      return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "telling the owner"));
    }
  }
}

Result<SelfProcess> SelfProcess::Start(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "pipe"));
  }
  UniqueFd output(ends[0]);
  const UniqueFd written(ends[1]);
  std::vector<char*> words = {const_cast<char*>("/proc/self/exe")};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "fork"));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(written.get(), STDOUT_FILENO);
    ::execv(words.front(), words.data());
    ::_exit(127);
  }
  return SelfProcess(pid, std::move(output));
}

Result<SelfProcess> SelfProcess::StartPlayer(const std::string& socket, uint64_t seed) {
  return Start({"--play-forever", socket, "--play-seed", fmt::format("{}", seed)});
}

SelfProcess::SelfProcess(SelfProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), output_(std::move(other.output_)) {}

Status SelfProcess::WaitUntilReady() {
  pollfd waited{.fd = output_.get(), .events = POLLIN, .revents = 0};
  int outcome = 0;
  do {
    outcome = ::poll(&waited, 1, kReadyTimeoutMs);
  } while (outcome < 0 && errno == EINTR);
  if (outcome == 0) return MakeError(ErrorCode::kTimeout, "player_silent");
  char byte = 0;
  if (::read(output_.get(), &byte, 1) == 1) return {};
  return MakeError(ErrorCode::kUnavailable, "player_ended", "before its first request was through");
}

void SelfProcess::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

}  // namespace kvtier
