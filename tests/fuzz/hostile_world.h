// SPDX-License-Identifier: Apache-2.0
// The daemon's own server, sessions and cache in one thread, on fake devices, disks, clock and
// index: what a fuzzer's clients attack. All of it follows from the fuzzer's input.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/posix.h"
#include "daemon/config/config.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/request_trace.h"
#include "daemon/session/server.h"
#include "protocol/model_record.h"
#include "tests/fakes/fake_machine.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/fuzz/fuzz_input.h"
#include "tiers/cache.h"

namespace kvtier {

// A client's process: it may have many connections, one after the other and at once, and memory
// that it could write to stays quarantined until it ends.
struct HostileProcess {
  int32_t pid = 0;
  uint32_t uid = 0;
  UniqueFd ended;  // readable when it has: in place of a pidfd
};

// Choices of the input before the first client comes.
struct HostileSetup {
  static constexpr uint32_t kModels = 2;

  explicit HostileSetup(FuzzInput* input);

  Config config;
  MachineSizes sizes;
  uint32_t pool_blocks = 0;  // of each pool
  uint32_t tenants = 1;      // with uids 1, 2, ...
  uint64_t event_order = 0;  // 0: as posted
};

// The model of this number, the same for every tenant; blocks of the second are twice as large.
[[nodiscard]] ModelRecord HostileModel(uint32_t number);

class HostileWorld {
 public:
  explicit HostileWorld(const HostileSetup& setup);
  // REQUIRES: Finish() was called.
  ~HostileWorld();
  HostileWorld(const HostileWorld&) = delete;
  HostileWorld& operator=(const HostileWorld&) = delete;

  // A new connection as of `process`.
  [[nodiscard]] UniqueFd Connect(const HostileProcess& process);
  // Lets the sessions' loop do all work that is due now. The cache's requests to devices and disks
  // stay under way: machine().loop steps them.
  void Settle();
  // Stops like the daemon: ends the sessions and drains the cache, which must not take until the
  // deadline.
  void Stop();
  // Brings everything to rest and checks that nothing is held, withheld or under way that no client
  // has. REQUIRES: every client has closed its connections, every process has ended.
  void Finish();

  [[nodiscard]] const HostileSetup& setup() const { return setup_; }
  [[nodiscard]] FakeMachine& machine() { return machine_; }
  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] Server& server() { return *server_; }

 private:
  // Connections come from the process that was named last.
  class Peers final : public PeerInspector {
   public:
    [[nodiscard]] Result<Peer> Inspect(int socket) override;
    const HostileProcess* next = nullptr;
  };
  [[nodiscard]] CacheEnvironment Environment();
  void UnpinEverything();
  void CheckNothingHeld();

  const HostileSetup setup_;
  const UniqueFd pool_fd_;
  FakeMachine machine_;
  EventLoop loop_;
  Log log_;
  Peers peers_;
  std::unique_ptr<Cache> cache_;
  Network network_{&loop_};
  wire::DevicesReply wire_devices_;
  ModelRegistry models_;
  ServerCounters counters_;
  std::unique_ptr<KeptMemories> kept_memories_;
  std::unique_ptr<Server> server_;
  Timer settled_;
};

}  // namespace kvtier
