// SPDX-License-Identifier: Apache-2.0
// Clients that play conversations which come back, for measurements that kill them or their daemon.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <random>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
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

// Plays until it is killed; says so on `ready_fd` when its first request is through. What a
// PlayerProcess does.
[[nodiscard]] Status PlayForever(const std::string& socket, uint64_t seed, int ready_fd);

// A client in a process of its own, killed with its owner.
class PlayerProcess {
 public:
  // Errors: kIoError.
  [[nodiscard]] static Result<PlayerProcess> Start(const std::string& socket, uint64_t seed);
  PlayerProcess(PlayerProcess&& other) noexcept;
  PlayerProcess& operator=(PlayerProcess&&) = delete;
  ~PlayerProcess() { Kill(); }

  // Returns when it has played its first request. Errors: kUnavailable "player_ended", kTimeout.
  [[nodiscard]] Status WaitUntilPlaying();
  // kill -9; returns when nothing is left of it.
  void Kill();

 private:
  PlayerProcess(pid_t pid, UniqueFd ready) : pid_(pid), ready_(std::move(ready)) {}

  pid_t pid_;  // -1 once killed
  UniqueFd ready_;
};

}  // namespace kvtier
