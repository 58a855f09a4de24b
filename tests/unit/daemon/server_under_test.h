// SPDX-License-Identifier: Apache-2.0
// A server with a real cache on the host device, its loop on a thread of its own.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "daemon/admin/trace_ring.h"
#include "daemon/attention/attention_service.h"
#include "daemon/config/config.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/request_trace.h"
#include "daemon/session/server.h"
#include "protocol/message_type.h"
#include "tests/fakes/fake_cold_store.h"
#include "tests/fakes/fake_owner.h"
#include "tests/fakes/late_device.h"
#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/bystander.h"
#include "tiers/cache.h"
#include "tiers/memory/mapped_arena.h"

namespace kvtier {

// Tells the truth, except where the test makes it lie.
class DisguisedPeers final : public PeerInspector {
 public:
  static constexpr int64_t kTrue = -1;

  [[nodiscard]] Result<Peer> Inspect(int socket) override {
    Result<Peer> peer = real_.Inspect(socket);
    if (peer && uid != kTrue) peer->uid = static_cast<uint32_t>(uid);
    if (peer && gid != kTrue) peer->gid = static_cast<uint32_t>(gid);
    if (peer && pid != kTrue) {
      Peer disguised = Bystander::PeerOf(static_cast<pid_t>(pid));
      peer->pid = disguised.pid;
      peer->pidfd = std::move(disguised.pidfd);
    }
    return peer;
  }

  // For connections that come from now on.
  std::atomic<int64_t> uid = kTrue;
  std::atomic<int64_t> gid = kTrue;
  std::atomic<int64_t> pid = kTrue;  // a process that lives

 private:
  SocketPeerInspector real_;
};

// Sizes for tests: 64 blocks of TestModel in the pool, four times as many in host memory; and a log
// that shows errors only.
[[nodiscard]] Config SmallConfig(const std::filesystem::path& directory);

class ServerUnderTest {
 public:
  // Whether the kernel may refuse descriptors for the daemon, or is taken to be one that cannot.
  enum class Kernel : uint8_t { kRefusesDescriptors, kPassesDescriptors };
  // `cold` may be null; its answers become events of the loop.
  explicit ServerUnderTest(const std::function<void(Config*)>& adjust = {},
                           FakeColdStore* cold = nullptr,
                           Kernel kernel = Kernel::kRefusesDescriptors,
                           const NetworkLimits& limits = {});
  // Checks the cache's invariants.
  ~ServerUnderTest();
  ServerUnderTest(const ServerUnderTest&) = delete;
  ServerUnderTest& operator=(const ServerUnderTest&) = delete;

  [[nodiscard]] const std::string& socket() const { return config_.server.socket; }
  // Runs `look` on the loop and waits for it.
  void OnLoop(const std::function<void()>& look);
  void Post(std::function<void()> event) { loop_.Post(std::move(event)); }
  // Looks on the loop, as soon as possible, until `holds`.
  void WaitUntil(const std::function<bool()>& holds);

  // To be touched on the loop only.
  [[nodiscard]] LateDevice& lent_host_memory() { return lent_host_memory_; }
  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] Server& server() { return *server_; }
  [[nodiscard]] Network& network() { return network_; }
  [[nodiscard]] const ServerCounters& counters() { return counters_; }
  [[nodiscard]] LateDevice& device() { return devices_.front(); }
  [[nodiscard]] KeptMemories& kept_memories() { return kept_memories_; }

  // The processor time of the longest event since the last call.
  [[nodiscard]] int64_t TakeLongestEventNs() { return longest_event_ns_.exchange(0); }

  // How often something was refused for this reason.
  [[nodiscard]] uint64_t Refusals(const std::string& reason);
  // The events of all requests of one kind, as they are shown.
  [[nodiscard]] std::vector<TraceEvent> Traced(wire::MessageType message, TracePhase phase);

  DisguisedPeers peers;
  FakeOwner owner;  // to be touched on the loop only

 private:
  void TickForever();
  void RunLoop();

  TestDirectory directory_;
  Config config_;
  Log log_;
  CoarseClock clock_;
  EventLoop loop_;
  std::unique_ptr<MappedArena> arena_;
  TraceRing trace_{4096};
  std::deque<LateDevice> devices_;
  std::vector<PoolDevice> pool_devices_;
  AttentionService attention_;
  ThreadExecutor executor_;
  LateDevice lent_host_memory_{&loop_};
  std::unique_ptr<Cache> cache_;
  Network network_;
  wire::DevicesReply wire_devices_;
  ModelRegistry models_;
  ServerCounters counters_;
  KeptMemories kept_memories_;
  std::unique_ptr<Server> server_;
  Timer tick_;
  std::atomic<int64_t> longest_event_ns_ = 0;
  std::thread thread_;
};

}  // namespace kvtier
