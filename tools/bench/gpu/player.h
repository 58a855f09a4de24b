// SPDX-License-Identifier: Apache-2.0
// Clients that play conversations which come back, for measurements that kill them or their daemon,
// and processes to run them in.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "tools/bench/gpu/gpu_bench.h"
#include "tools/replay/replay_client.h"
#include "tools/support/private_daemon.h"

namespace kvtier {

inline constexpr uint64_t kPlayedBlockBytes = uint64_t{64} << 10;
inline constexpr uint32_t kPlayedBlockTokens = 512;

// A daemon with tiers so small that the conversations need all three.
[[nodiscard]] Result<PrivateDaemon> StartPlayedDaemon(const GpuBenchOptions& options);
// A client of it that comes back fast when it is lost.
[[nodiscard]] Result<ReplayClient> ConnectPlayer(const std::string& socket);
// The beginning of one of some conversations.
[[nodiscard]] TraceRequest DrawConversation(std::mt19937_64* random);

// Plays until it is killed; writes a byte to `ready_fd` when its first request is through.
[[nodiscard]] Status PlayForever(const std::string& socket, uint64_t seed, int ready_fd);

// Another process of this program, with other arguments; it is killed when its owner ends.
class SelfProcess {
 public:
  // Errors: kIoError.
  [[nodiscard]] static Result<SelfProcess> Start(const std::vector<std::string>& arguments);
  // One that does PlayForever.
  [[nodiscard]] static Result<SelfProcess> StartPlayer(const std::string& socket, uint64_t seed);
  SelfProcess(SelfProcess&& other) noexcept;
  SelfProcess& operator=(SelfProcess&&) = delete;
  ~SelfProcess() { Kill(); }

  // Returns when it has written its first byte: a player, when it has played its first request.
  // Errors: kUnavailable "player_ended", kTimeout.
  [[nodiscard]] Status WaitUntilReady();
  // kill -9; returns when nothing is left of it.
  void Kill();

 private:
  SelfProcess(pid_t pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}

  pid_t pid_;  // -1 once killed
  UniqueFd output_;
};

}  // namespace kvtier
