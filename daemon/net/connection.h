// SPDX-License-Identifier: Apache-2.0
// One client's socket: cuts received bytes into frames, queues frames to send, and holds the client
// to its limits. The meaning of frames is its listener's business.
//
// Event loop only. A connection belongs to a session, which is its listener. The peer is hostile
// until proven otherwise: a frame's length is bounded before it is buffered, the queue for it is
// bounded, and a peer that does not read is cut off after a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "base/tenant_budget.h"
#include "daemon/net/descriptor_closer.h"
#include "daemon/net/descriptor_inbox.h"
#include "daemon/net/fair_turns.h"
#include "daemon/net/outbox.h"
#include "daemon/net/retries.h"
#include "daemon/net/sent_descriptors.h"
#include "daemon/runtime/event_loop.h"
#include "protocol/frame.h"
#include "protocol/session_messages.h"
#include "protocol/socket_io.h"

namespace kvtier {

// Regions of all tenants together: parts of the descriptors and mappings that the process may have.
[[nodiscard]] uint64_t MaxRegions();

// The numbers that tenants share, each by a TenantBudget.
struct NetworkLimits {
  uint64_t unread_descriptors = MaxUnreadDescriptors();
  uint64_t regions = MaxRegions();
};

// The part that all connections of the process share; outlives them. The order of the members is
// that of construction: the turns end before the closer.
struct Network {
  explicit Network(EventLoop* event_loop, const NetworkLimits& limits = {})
      : loop(event_loop),
        mail(event_loop),
        sent(event_loop, &closer, limits.unread_descriptors),
        regions(limits.regions),
        turns(event_loop),
        retries(event_loop, &turns) {}
  Network(EventLoop* event_loop, DescriptorCloser::CloseCall close,
          const NetworkLimits& limits = {})
      : loop(event_loop),
        mail(event_loop),
        closer(std::move(close)),
        sent(event_loop, &closer, limits.unread_descriptors),
        regions(limits.regions),
        turns(event_loop),
        retries(event_loop, &turns) {}
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network() { mail.Close(); }
  EventLoop* const loop;
  const LoopMail mail;  // for threads that may outlive the loop
  // Whether a kernel that can (Linux 6.16) is to refuse descriptors that peers send before HELLO.
  // Off in tests, for the behaviour on others.
  bool kernel_refuses_descriptors = true;
  DescriptorCloser closer;
  SentDescriptors sent;
  TenantBudget regions;
  FairTurns turns;
  Retries retries;
};

// The limits of one client's cost. All bytes are of this connection alone.
struct ConnectionLimits {
  uint32_t max_frame_bytes = wire::kMaxFrameBytes;
  // With more than this unsent, or kMaxUnreadDescriptors, frames are neither read nor handed out
  // until half of it has gone.
  uint64_t max_outbound_bytes = 0;
  // With something unsent and nothing of it taken for so long, the connection is cut. It does not
  // matter whether the socket is full, SentDescriptors holds it back or the kernel refuses it.
  int64_t slow_reader_timeout_ms = 0;
};

// The side of a connection's owner. All calls come from events of the loop only.
class ConnectionListener {
 public:
  virtual ~ConnectionListener() = default;
  // One complete frame; its payload is valid during the call. Never called after CloseWith.
  virtual void OnFrame(const wire::Frame& frame) = 0;
  // This side is to end the connection. It ends when `end` is called, now or in a later event; the
  // peer does not see it end before. No frame is handed out or sent any more. Not called if the
  // peer has gone.
  virtual void OnEnding(std::function<void()> end) { end(); }
  // Called once when the connection has ended, and nothing after it: by the peer (kUnavailable
  // "peer_closed"), by CloseWith or EndWith (its error), by a bad frame (as of FrameDecoder; the
  // peer was told), because the peer does not read (kTimeout "slow_reader") or because nothing can
  // be sent to it (of Outbox::stall and wire::Send). The connection must not be destroyed from
  // within; it may be from any later event.
  virtual void OnClosed(const Error& why) = 0;
};

// The listener is only ever called from events of the loop, never from within a method: methods may
// be called from anywhere on the loop's thread, callbacks of the cache included. Frames are handed
// out one at a time and in order; replies leave in the order in which they were queued.
//
// Nothing that is sent can fail for the caller. When the connection is closing or closed, Send does
// nothing, and OnClosed tells why once. A peer may have closed its end with replies on their way:
// the requests that it sent before are handed out first.
class Connection {
 public:
  // Makes the socket non-blocking and its buffers large. Connections of one `tenant` share its
  // turns at the loop. `network` and `listener` must outlive the connection.
  Connection(Network* network, const std::string& tenant, UniqueFd socket,
             const ConnectionLimits& limits, ConnectionListener* listener);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Begins to read. REQUIRES: called once, when the listener is ready to be called.
  void Start();
  // The peer may send descriptors from now on; before, one that comes ends the connection.
  void AcceptDescriptors() { descriptors_.Accept(); }
  // The next of the descriptors that came with the first byte of the frame being handled; nothing
  // if there is no other. It is of memory (IsOfMemory), or invalid in place of one that is not.
  // Descriptors that no frame takes are closed. Closing one may take long: by the DescriptorCloser,
  // in the tenant's name.
  [[nodiscard]] std::optional<UniqueFd> TakeDescriptor() { return descriptors_.Take(); }
  // The longest frame that is taken from now on, the one being handled included.
  void SetMaxFrameBytes(uint32_t bytes) { decoder_.set_max_frame_bytes(bytes); }

  template <typename Message>
  void Send(uint64_t request_id, const Message& message) {
    SendEncoded([&](std::vector<std::byte>* out) { wire::Encode(message, request_id, out); });
  }
  // `owner` keeps the descriptors open and is kept until they were sent.
  template <typename Message>
  void SendWithDescriptors(uint64_t request_id, const Message& message,
                           std::vector<int> descriptors, std::shared_ptr<const void> owner) {
    if (!CanSend()) return;
    outbox_.AppendWithDescriptors(
        std::move(descriptors), std::move(owner),
        [&](std::vector<std::byte>* out) { wire::Encode(message, request_id, out); });
    FlushUnlessBatching();
  }

  // Tells the peer with an ERROR of request id 0, lets it take the queued frames within the
  // slow-reader time-out, and ends. Frames that were received and not handed out are dropped. Only
  // the first call has an effect.
  void CloseWith(const Error& error);
  // Ends without a word, because no process is left that would read it.
  void EndWith(const Error& why) { End(why, EndedBy::kPeer); }

  // The frame being handled asks for so much work; see FairTurns. Every frame costs something in
  // any case.
  void Spend(size_t items) { spent_ += static_cast<uint32_t>(std::min<size_t>(items, 1u << 20)); }
  // How many items the frame being handled, or its step, should work on before the next turn.
  [[nodiscard]] uint32_t budget() const;
  // The frame being handled is too dear for one turn: `step` does a part of it, as large as the
  // budget, in each turn from now on and returns whether there is more. No other frame is handed
  // out before. It is dropped when the connection ends. kSendsNothing: it goes on although the
  // client does not take in its replies, so that space that it has begun to take does not stay
  // taken for as long as the client likes. REQUIRES: within OnFrame, at most once.
  enum class StepKind : uint8_t { kMaySend, kSendsNothing };
  void WorkInSteps(std::function<bool()> step, StepKind kind = StepKind::kMaySend) {
    steps_ = {std::move(step), kind};
  }

  // Until Resume, no more frames are handed out. Calls nest.
  void Pause() { ++pauses_; }
  void Resume();

  // To be shared with those who use the peer's memory. Its earlier requests are still handed out.
  [[nodiscard]] const std::shared_ptr<HangUp>& hang_up() const { return socket_.hang_up(); }
  // The peer takes no replies any more. Its earlier requests are still handed out.
  [[nodiscard]] bool deaf() const { return deaf_.has_value(); }

  // More is queued than the limit allows: events that can wait should. `drained` is called, from a
  // later event, when that is over; a second call of OnceUncongested replaces the first's callback,
  // and none is called once the connection has ended.
  [[nodiscard]] bool congested() const { return congested_; }
  void OnceUncongested(std::function<void()> drained) { on_drained_ = std::move(drained); }

  // To be called every second or so: a connection that was idle since the last call keeps no buffer
  // for later frames.
  void GiveBackMemory();

 private:
  // kClosing: an ERROR is queued and nothing more is accepted in either direction. kEnding: the
  // listener is asked to let it end, or is about to be from a later event. kClosed: the socket is
  // shut down; OnClosed was called, or is about to be.
  enum class State : uint8_t { kOpen, kClosing, kEnding, kClosed };

  // The frame that is worked on in steps, if there is one.
  struct Steps {
    std::function<bool()> next;
    StepKind kind = StepKind::kMaySend;
  };

  template <typename Encode>
  void SendEncoded(Encode&& encode) {
    if (!CanSend()) return;
    outbox_.Append(std::forward<Encode>(encode));
    FlushUnlessBatching();
  }
  [[nodiscard]] bool CanSend() const { return state_ == State::kOpen && !deaf(); }
  [[nodiscard]] bool MayRead() const {
    return state_ == State::kOpen && pauses_ == 0 && !congested_;
  }
  // Whether a step may be done, or, without one, a frame read and handed out.
  [[nodiscard]] bool MayWork() const {
    if (!steps_.next || steps_.kind == StepKind::kMaySend) return MayRead();
    return state_ == State::kOpen && pauses_ == 0;
  }

  // One turn at the loop: hands out received frames, reads once if the socket is readable, and
  // sends the replies with one system call. Returns the price.
  uint32_t TakeTurn(uint32_t quantum);
  // Returns true if there is more to do than the turn had time for.
  [[nodiscard]] bool Work();
  // Hands out the next frame. Returns false if the turn's quantum is too small for it.
  [[nodiscard]] bool HandOut(const wire::Frame& frame);
  // Returns false if nothing came.
  [[nodiscard]] bool ReceiveOnce();
  // Receives some of the bytes that descriptors come with.
  [[nodiscard]] bool ReceiveWithDescriptors(std::span<std::byte> space);
  // Adds the bytes that were received to the decoder's. Returns false if there are none.
  [[nodiscard]] bool Received(const Result<std::optional<size_t>>& received);
  void WaitForMore();
  void FlushUnlessBatching();
  void Flush();
  // Restarts the slow-reader clock if any byte went, and decides whether the connection has ended
  // or may be read from again.
  void AfterSending(size_t sent);
  // The peer took no reply: the connection ends when its earlier requests are handed out.
  void BecomeDeaf(const Error& why);
  enum class EndedBy : uint8_t { kPeer, kDaemon };
  void End(const Error& why, EndedBy by);
  void ShutDown();
  // Work that must not happen within a method: going on to read, or telling the listener of the
  // end.
  void Continue();
  void ContinueLater();

  Network* const network_;
  PeerSocket socket_;
  const ConnectionLimits limits_;
  ConnectionListener* const listener_;
  wire::FrameDecoder decoder_;
  DescriptorInbox descriptors_;
  Outbox outbox_;
  State state_ = State::kOpen;
  Error close_reason_;
  int pauses_ = 0;
  bool ask_listener_ = false;  // before it ends
  bool batching_ = false;
  bool congested_ = false;
  std::optional<Error> deaf_;  // why the peer takes no replies any more
  size_t unread_ = 0;          // of a deaf peer: so many bytes are still to be received
  bool readable_ = false;
  bool idle_ = false;   // since the last GiveBackMemory
  uint32_t spent_ = 0;  // in this turn
  uint32_t quantum_ = kTurnPrice;
  // Taken from the decoder in a turn that was too short for it. While it is here nothing is
  // received, which would overwrite its payload.
  std::optional<wire::Frame> held_;
  Steps steps_;
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
