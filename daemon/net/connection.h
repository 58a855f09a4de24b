// SPDX-License-Identifier: Apache-2.0
// One client's socket: cuts what comes into frames, queues what goes, and holds the client to its
// limits. What frames mean is its listener's business.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/net/descriptor_closer.h"
#include "daemon/net/fair_turns.h"
#include "daemon/net/outbox.h"
#include "daemon/runtime/event_loop.h"
#include "protocol/frame.h"
#include "protocol/session_messages.h"

namespace kvtier {

// What all connections of the process share; outlives them.
struct Network {
  explicit Network(EventLoop* event_loop) : loop(event_loop), turns(event_loop) {}
  EventLoop* const loop;
  DescriptorCloser closer;
  FairTurns turns;
};

struct ConnectionLimits {
  uint32_t max_frame_bytes = wire::kMaxFrameBytes;
  // With more than this unsent, frames are neither read nor handed out until half of it has gone.
  uint64_t max_outbound_bytes = 0;
  // With something unsent and nothing of it taken for so long, the connection is cut.
  int64_t slow_reader_timeout_ms = 0;
};

class ConnectionListener {
 public:
  virtual ~ConnectionListener() = default;
  // One complete frame; its payload is valid during the call. Never called after CloseWith.
  virtual void OnFrame(const wire::Frame& frame) = 0;
  // Called once when the connection has ended, and nothing after it: by the peer (kUnavailable
  // "peer_closed"), by CloseWith or EndWith (its error), by a bad frame (as of FrameDecoder; the
  // peer was told) or because the peer does not read (kTimeout "slow_reader"). The connection must
  // not be destroyed from within; it may be from any later event.
  virtual void OnClosed(const Error& why) = 0;
};

// The listener is only ever called from events of the loop, never from within a method: methods may
// be called from anywhere, callbacks of the cache included.
class Connection {
 public:
  // Makes the socket non-blocking and its buffers large. Connections of one `tenant` share its
  // turns at the loop. `network` and `listener` must outlive the connection.
  Connection(Network* network, const std::string& tenant, UniqueFd socket,
             const ConnectionLimits& limits, ConnectionListener* listener);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Begins to read.
  void Start();
  // The longest frame that is taken from now on, the one being handled included.
  void SetMaxFrameBytes(uint32_t bytes) { decoder_.set_max_frame_bytes(bytes); }

  template <typename Message>
  void Send(uint64_t request_id, const Message& message) {
    SendEncoded([&](std::vector<std::byte>* out) { wire::Encode(message, request_id, out); });
  }
  template <typename Message>
  void SendWithDescriptor(uint64_t request_id, const Message& message, int descriptor,
                          std::shared_ptr<const void> owner = nullptr) {
    if (!CanSend()) return;
    outbox_.AppendWithDescriptor(
        descriptor, [&](std::vector<std::byte>* out) { wire::Encode(message, request_id, out); },
        std::move(owner));
    FlushUnlessBatching();
  }

  // Tells the peer with an ERROR of request id 0, lets it take what is queued, and ends.
  void CloseWith(const Error& error);
  // Ends without a word: nobody is there to take it.
  void EndWith(const Error& why) { End(why); }

  // The frame being handled asks for so much work; see FairTurns. Every frame costs something in
  // any case.
  void Spend(size_t items) { spent_ += static_cast<uint32_t>(std::min<size_t>(items, 1u << 20)); }
  // The frame being handled is too dear for one turn: `step` does a part of it in each turn from
  // now on and returns whether there is more. No other frame is handed out before. It is dropped
  // when the connection ends. REQUIRES: within OnFrame, at most once.
  void WorkInSteps(std::function<bool()> step) { step_ = std::move(step); }

  // Until Resume, no more frames are handed out. Calls nest.
  void Pause() { ++pauses_; }
  void Resume();

  // More is queued than the limit allows: events that can wait should. `drained` is called, from a
  // later event, when that is over.
  [[nodiscard]] bool congested() const { return congested_; }
  void OnceUncongested(std::function<void()> drained) { on_drained_ = std::move(drained); }

  // To be called every second or so: a connection that was idle since the last call keeps no buffer
  // for what it may send.
  void GiveBackMemory();

 private:
  enum class State : uint8_t { kOpen, kClosing, kClosed };

  template <typename Encode>
  void SendEncoded(Encode&& encode) {
    if (!CanSend()) return;
    outbox_.Append(std::forward<Encode>(encode));
    FlushUnlessBatching();
  }
  [[nodiscard]] bool CanSend() const { return state_ == State::kOpen; }
  [[nodiscard]] bool MayRead() const {
    return state_ == State::kOpen && pauses_ == 0 && !congested_;
  }

  // One turn at the loop: hands out what was received, reads once if the socket is readable, and
  // sends the replies with one system call. Returns the price.
  uint32_t TakeTurn();
  // Returns true if there is more to do than the turn had time for.
  [[nodiscard]] bool Work();
  // Returns false if nothing came.
  [[nodiscard]] bool ReceiveOnce();
  void WaitForMore();
  void FlushUnlessBatching();
  void Flush();
  void AfterSending(size_t sent);
  void End(const Error& why);
  // What must not happen within a method: going on to read, or telling the listener of the end.
  void Continue();
  void ContinueLater();

  Network* const network_;
  const ForeignFd socket_;  // may hold descriptors that the peer sent and that were not received
  const ConnectionLimits limits_;
  ConnectionListener* const listener_;
  wire::FrameDecoder decoder_;
  Outbox outbox_;
  State state_ = State::kOpen;
  Error close_reason_;
  int pauses_ = 0;
  bool batching_ = false;
  bool congested_ = false;
  bool readable_ = false;
  bool idle_ = false;   // since the last GiveBackMemory
  uint32_t spent_ = 0;  // in this turn
  std::function<bool()> step_;
  std::function<void()> on_drained_;
  Timer slow_reader_;
  Timer later_;
  FairTurns::Member turns_;
  // Last, so that it is gone before the socket is closed.
  FdWatch watch_;
};

// Tells the peer of a new connection, as far as its buffer takes it, why it is not served.
void SendRefusal(int socket, const Error& error);

}  // namespace kvtier
