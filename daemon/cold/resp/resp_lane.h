// SPDX-License-Identifier: Apache-2.0
// A thread with a connection of its own, which keeps several commands under way on it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "daemon/cold/cold_backend.h"
#include "daemon/cold/resp/resp_connection.h"
#include "daemon/cold/tenant_line.h"

namespace kvtier {

// One call of the daemon, as commands.
struct RespCall {
  std::vector<std::string> words;  // of all commands
  std::vector<size_t> lengths;     // words of each command
  std::string_view payload;        // stands where a word is empty; borrowed
  std::span<std::byte> into;       // of a call with one command, for the text of its reply
  std::chrono::steady_clock::time_point deadline;
  std::string tenant;  // whose turn it takes; the same for calls that are to keep their order
  // Each reply of the call's commands, by the command's position.
  std::function<void(size_t, const RespReply&)> answered;
  // Called before `ended` if the server may execute the commands later; may be empty.
  std::function<void()> left_unsure;
  // Called once: KVT_COLD_OK if all replies came, and else with the reason, KVT_COLD_UNSENT if
  // the call was not sent in time, or KVT_COLD_UNAVAILABLE.
  std::function<void(int status, const std::string& failure)> ended;
};

// Any thread may call.
class RespLane {
 public:
  // `resolve` is asked for the host's addresses.
  explicit RespLane(const RespEndpoint& endpoint,
                    HostAddresses::Resolve resolve = &HostAddresses::ResolveBySystem);
  // Ends the calls that wait as failed.
  ~RespLane();
  RespLane(const RespLane&) = delete;
  RespLane& operator=(const RespLane&) = delete;

  void Add(RespCall call);
  // Sent together, as far as there is room.
  void AddAll(std::vector<RespCall> calls);
  // The connection fails, and so does all that comes; returns at once. The thread then ends within
  // a second.
  void Interrupt();

 private:
  // A call whose commands have been sent, or are being sent.
  struct Sent {
    RespCall call;
    size_t answered = 0;  // commands
  };

  void Work();
  // The next calls to be sent together. Waits for some if nothing is under way; none then: the end.
  [[nodiscard]] std::vector<RespCall> Take();
  void Send(std::vector<RespCall> calls);
  void ReceiveOne();
  // Ends the calls under way, which the server will not answer.
  void FailSent();

  RespConnection connection_;
  // The thread alone uses these.
  std::deque<Sent> sent_;
  size_t sent_bytes_ = 0;     // of their payloads
  size_t sent_commands_ = 0;  // that were not answered
  std::mutex mutex_;
  std::condition_variable wake_;
  TenantLine<RespCall> waiting_;
  bool stopping_ = false;
  std::thread thread_;  // last
};

}  // namespace kvtier
