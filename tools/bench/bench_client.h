// SPDX-License-Identifier: Apache-2.0
// A client that stores sets of blocks and brings them back, timed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kvtier/kvtier.hpp"
#include "tools/bench/daemon_status.h"
#include "tools/replay/replay_client.h"
#include "tools/support/private_daemon.h"

namespace kvtier {

// The times of one acquire and of the wait for its load.
struct TimedLoad {
  double first_seconds = 0;  // from the same start to the end of what came before the wait
  double seconds = 0;
  std::array<uint64_t, kTierCount> hit{};
  uint64_t ready = 0;
  // The daemon's processor time within `seconds`; only for clients of a PrivateDaemon.
  DaemonCpu cpu;
};

// The bytes that were copied down within a time.
struct TimedOffload {
  double seconds = 0;
  uint64_t bytes = 0;
};

class BenchClient {
 public:
  // A client of `daemon` with a pool of its own that takes all of the configured bytes.
  [[nodiscard]] static Result<BenchClient> Connect(const PrivateDaemon& daemon,
                                                   uint64_t block_bytes, uint32_t layers = 1);
  // Connects to any daemon.
  [[nodiscard]] static Result<BenchClient> Connect(const ReplayTarget& target,
                                                   const std::string& admin_socket);

  // The hashes of a set of `count` blocks that form one sequence. Different seeds, different sets.
  [[nodiscard]] static std::vector<BlockHash> Set(uint64_t seed, size_t count);

  // Fills and commits the set's blocks where they are missing, lets go of them, and waits until the
  // daemon is at rest. Errors: kResourceExhausted when the pool is smaller than the set.
  [[nodiscard]] Status Store(const std::vector<BlockHash>& set);
  // Commits a set that is nowhere yet, filled or with whatever its blocks hold, and lets go of it:
  // the time from then until the daemon was at rest, and the bytes that it offloaded meanwhile.
  // (Some may have been offloaded before, to make room.)
  [[nodiscard]] Result<TimedOffload> CommitAndTimeRest(const std::vector<BlockHash>& set,
                                                       bool fill);
  // Commits a set likewise, lets go of it and asks at once for as many new blocks: the time to get
  // them, and the bytes that were offloaded meanwhile to make room.
  [[nodiscard]] Result<TimedOffload> CommitAndTimeRoom(const std::vector<BlockHash>& set);
  // References the whole set, waits until it is usable, lets go of it, and waits until the daemon
  // is at rest. Only the first two are timed.
  [[nodiscard]] Result<TimedLoad> Load(const std::vector<BlockHash>& set);
  // The same in any order, with something done before the whole of it is waited for.
  using BeforeWait = std::function<Status(kvt::Pool* pool, kvt::Acquired* acquired)>;
  [[nodiscard]] Result<TimedLoad> Load(const std::vector<BlockHash>& set, kvt_load_order order,
                                       const BeforeWait& before);
  // The acquire alone, in microseconds, of a set that is in the pool; lets go of it.
  [[nodiscard]] Result<double> AcquireUs(const std::vector<kvt_hash>& set);
  [[nodiscard]] Result<double> PingUs();
  // How many of the set's blocks are durably on disk.
  [[nodiscard]] Result<uint64_t> CountOnDisk(const std::vector<BlockHash>& set);

  // The bytes that the daemon has copied from its pools to host memory since it began.
  [[nodiscard]] Result<uint64_t> OffloadedBytes();
  // Asks the admin socket: the blocks leave host memory, so that the next load reads the disk.
  [[nodiscard]] Status EvictFromHost(const std::vector<BlockHash>& set) {
    return Evict(set, R"("tier":"host",)");
  }
  // The same; they leave all tiers.
  [[nodiscard]] Status Evict(const std::vector<BlockHash>& set) { return Evict(set, ""); }
  // Asks the admin socket: every block is on disk afterwards.
  [[nodiscard]] Status Drain();
  [[nodiscard]] Status Settle();

 private:
  // `more`: members of the request, each with a comma after it.
  [[nodiscard]] Status Evict(const std::vector<BlockHash>& set, std::string_view more);
  // New blocks, committed as the set; filled or with whatever they hold.
  [[nodiscard]] Result<kvt::Acquired> CommitNew(const std::vector<BlockHash>& set, bool fill);

  BenchClient(ReplayClient client, std::string admin_socket)
      : client_(std::move(client)), admin_socket_(std::move(admin_socket)) {}

  ReplayClient client_;
  std::string admin_socket_;
  pid_t daemon_ = 0;  // 0: not known
};

}  // namespace kvtier
