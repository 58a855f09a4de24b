// SPDX-License-Identifier: Apache-2.0
// A daemon in a thread of the test's process: speaks the protocol over a Unix socket, keeps blocks
// in a FakeCache, and misbehaves on demand.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/posix.h"
#include "protocol/frame.h"
#include "protocol/messages.h"
#include "tests/unit/client/fake_cache.h"

namespace kvtier::client {

struct FakeDaemonOptions {
  uint32_t blocks = 64;
  uint64_t generation = 1;  // of the pool
  // Sessions may be resumed.
  bool keeps = false;
  uint32_t max_hashes = wire::kMaxHashesPerCall;
  uint32_t max_blocks = wire::kMaxBlocksPerCall;
  wire::DeviceKind device_kind = wire::DeviceKind::kHost;  // as it says; the pool is host memory
  // Descriptors with less memory than announced.
  bool short_pool = false;
  // Leaves the requests where they are.
  bool deaf = false;
  // Counts loads; else only events tell of them, as when the counter page is full.
  bool counters = false;
  uint32_t layers = 8;  // counted of a load in layers
  // Wants token ids; else does not know the message.
  bool token_ids = false;
};

// All methods may be called from any thread. One client at a time.
class FakeDaemon {
 public:
  using Bytes = std::vector<std::byte>;
  // Sees each request before it is served. Returns what to send instead of serving it, or nothing
  // to have it served.
  using Interceptor = std::function<std::optional<Bytes>(const wire::Frame&)>;

  FakeDaemon(std::string socket_path, FakeDaemonOptions options = {});
  // Closes everything, as a killed daemon's kernel does.
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  // Closes the client's connection; the daemon goes on listening, its cache stays.
  void DropClient();
  // The same, as if the daemon had died and another had taken over its pool. References stay as
  // they are: the claims of RESUME only ask which blocks are there.
  void DieAndAdopt();
  // For use in an interceptor.
  void DieAndAdoptLocked();
  // Called by the daemon's thread until another is set or the daemon ends, which may be after the
  // test's body has returned: what an interceptor looks at outlives the daemon, or is shared.
  void Intercept(Interceptor interceptor);
  // Intercepts requests of the type: they are received, and neither served nor answered.
  void HoldBack(wire::MessageType type);
  // Blocks until a request is held back; the number of the last one. Each is told once.
  [[nodiscard]] uint64_t WaitForHeldBack();
  // Loads up to `ready` and tells the client.
  void Progress(LoadId load, uint32_t ready, bool finished, uint8_t miss_reason = 0);
  // Tells the client that transfers of the region are done.
  void Done(const wire::TransferDone& done);
  // The bytes of the memory that came with the last OPEN_REGION, read through its descriptor; empty
  // if none came.
  [[nodiscard]] std::vector<std::byte> RegionMemory();
  // Sends another process's answer to requests for kept memory.
  void RefuseKeptMemory(bool refuse);
  // Kept memory of all names: the message, and the descriptors that came with it.
  struct Kept {
    wire::KeepMemory message;
    UniqueFd memory;
    UniqueFd table;
  };
  void WithKept(const std::function<void(std::map<wire::KeptMemoryName, Kept>*)>& body);
  // Sets the load's counter: so many steps done. No event.
  void Count(LoadId load, uint32_t done);
  // The same in a counter that the client has named; its load need not be known.
  void Count(const wire::LoadCounter& counter, uint32_t done);
  // Sends any bytes to the client.
  void Send(const Bytes& bytes);
  // Runs `body` while the daemon does nothing.
  void WithCache(const std::function<void(FakeCache*)>& body);
  // Blocks until so many requests of the type have been received since the start.
  void WaitForRequests(wire::MessageType type, int count);
  [[nodiscard]] int Requests(wire::MessageType type);
  [[nodiscard]] int requests();
  [[nodiscard]] uint32_t references();
  // The token ids that it was told.
  [[nodiscard]] std::map<BlockHash, std::vector<uint32_t>> TokenIds();

 private:
  void Run();
  void Serve(UniqueFd client);
  // False when the client is gone.
  [[nodiscard]] bool ReadRequests(int socket, wire::FrameDecoder* decoder);
  void Answer(const wire::Frame& frame);
  void AnswerBlocks(const wire::Frame& frame);
  void AnswerResume(const wire::Frame& frame);
  void AnswerTokens(const wire::Frame& frame);
  void AnswerAttach(const wire::Frame& frame);
  void AnswerAcquire(const wire::Frame& frame);
  void AnswerOpenRegion(const wire::Frame& frame);
  void AnswerWorkspace(const wire::Frame& frame);
  void AnswerKeptMemory(const wire::Frame& frame);
  void WriteCounter(const wire::LoadCounter& counter, uint32_t done);
  template <typename Message>
  void Reply(const wire::Frame& frame, const Message& message) {
    Bytes bytes;
    wire::Encode(message, frame.request_id, &bytes);
    SendLocked(bytes);
  }
  void SendLocked(const Bytes& bytes, int descriptor = -1, int second = -1);

  const FakeDaemonOptions options_;
  const std::string socket_path_;
  UniqueFd listener_;
  UniqueFd stop_;  // an eventfd

  std::mutex mutex_;
  std::condition_variable received_;
  std::unique_ptr<FakeCache> cache_;
  UniqueFd counters_;
  std::vector<UniqueFd> descriptors_;  // that the client sent, and no request has taken yet
  UniqueFd region_memory_;
  std::map<wire::KeptMemoryName, Kept> kept_;
  bool refuse_kept_memory_ = false;
  std::map<BlockHash, std::vector<uint32_t>> token_ids_;
  int client_ = -1;
  uint64_t lives_ = 0;
  std::set<SessionId> resumed_;  // in this life: the last RESUME of these was answered
  uint64_t block_bytes_ = 0;
  uint32_t block_tokens_ = 0;
  Interceptor interceptor_;
  std::optional<uint64_t> held_back_;
  std::map<uint16_t, int> counts_;

  std::thread thread_;
};

// The frame of a message, for interceptors.
template <typename Message>
FakeDaemon::Bytes FrameOf(const Message& message, uint64_t request_id) {
  FakeDaemon::Bytes bytes;
  wire::Encode(message, request_id, &bytes);
  return bytes;
}

}  // namespace kvtier::client
