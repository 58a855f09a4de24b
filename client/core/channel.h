// SPDX-License-Identifier: Apache-2.0
// One established connection to a daemon: requests out, replies to the calls that wait, events to a
// sink. Once it is lost it stays lost.
//
// Threads: any number may call at once. Requests are sent in the order of the calls. There is no
// thread of its own: of the threads that wait, one at a time reads the socket for all of them.
//
// Sending. A daemon that takes in nothing for the send time-out has its connection cut, unless it
// may pause. The deadline of a call is another matter: once it has passed, the call ends. A request
// of which nothing was sent is not sent any more; the rest of one that has begun is sent later,
// ahead of the next request.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "client/core/unix_socket.h"
#include "protocol/frame.h"
#include "protocol/messages.h"

namespace kvtier::client {

class Channel {
 public:
  // Called under the channel's lock with each frame that answers no waiting call: events, late
  // replies, replies to posted requests. An error means that the daemon broke the protocol.
  using Sink = std::function<Status(const wire::Frame&)>;
  // Beyond the exchange itself; both run under the channel's lock.
  template <typename Reply>
  struct Hooks {
    // Called before any later frame is handled. An error says that the daemon broke the protocol.
    std::function<Status(const Reply&)> on_reply;
    // The caller waits no longer; a reply may still come, to the sink.
    std::function<void(uint64_t request_id)> on_cancelled;
    // The request is of use without its answer: if it could not be sent by the deadline it is sent
    // later, too, unless more bytes than these wait for that already. It goes without descriptors.
    std::optional<size_t> sent_later_behind = {};
  };
  // Functions of the channel's owner; all but the sink may be left out.
  struct Owner {
    Sink sink;
    // Runs once, under the channel's lock, when the connection is lost.
    std::function<void()> on_lost = {};
    // Runs without the lock each time that a caller has given up waiting, or may have left
    // something to be sent later.
    std::function<void()> on_abandoned = {};
    // Whether the daemon may rightly leave requests where they are for the time being. Runs under
    // the lock.
    std::function<bool()> may_pause = {};
  };

  Channel(UniqueFd socket, uint32_t max_frame_bytes, int64_t send_timeout_ms, Owner owner);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Sends a request and waits for its reply; COMMIT and RELEASE, which are answered on demand, ask
  // for it. `received` gets the first of the descriptors that came with the reply; `to_send`, at
  // most wire::kMaxDescriptorsPerSend of them, go with the request's first byte and remain the
  // caller's. Errors: the daemon's; kLimitExceeded (as of wire::TryEncode); kUnavailable when the
  // connection is lost; kTimeout "request_timeout", or "not_sent": the daemon will not hear of it.
  template <typename Reply, typename Request>
  [[nodiscard]] Result<Reply> Call(const Request& request, Deadline deadline,
                                   const Hooks<Reply>& hooks = {},
                                   std::span<UniqueFd> received = {},
                                   std::span<const int> to_send = {});
  // Sends without waiting for an answer, and for the daemon to take the request in as long as the
  // send time-out allows. `on_sent` runs under the lock before the request is encoded, and may
  // still change it. Errors: kLimitExceeded, as above; kUnavailable.
  template <typename Request>
  [[nodiscard]] Status Post(const Request& request,
                            const std::function<void(uint64_t request_id)>& on_sent = {}) {
    return Send(EncoderOf(request, 0), {}, {}, on_sent);
  }
  // The same of a request that gives something back. It waits no longer than the send time-out,
  // also for a daemon that pauses, and goes ahead of the next request then.
  template <typename Request>
  [[nodiscard]] Status GiveBack(const Request& request,
                                const std::function<void(uint64_t request_id)>& on_sent = {}) {
    const Status given =
        Send(EncoderOf(request, 0), {}, {DeadlineIn(send_timeout_ms_), SIZE_MAX}, on_sent);
    TellOfRest();
    return given;
  }
  // Waits until `done`, called under the lock, is true. A deadline already past still takes in the
  // frames that have arrived. Errors: kUnavailable, kTimeout.
  [[nodiscard]] Status WaitUntil(const std::function<bool()>& done, Deadline deadline);
  // Takes in the frames that have arrived, and tells whether the connection still stands.
  [[nodiscard]] bool Poll();

  [[nodiscard]] std::unique_lock<std::mutex> Lock() { return std::unique_lock(mutex_); }
  // Has the message sent ahead of the next request. REQUIRES: the lock is held.
  template <typename Message>
  void Defer(const Message& message) {
    wire::Encode(message, ++last_request_id_, &deferred_output_);
  }
  // Sends the deferred messages, without a request. Errors: as Post.
  [[nodiscard]] Status SendDeferred();
  // Whether the daemon owes a reply for which no caller waits any more.
  [[nodiscard]] bool AwaitsLateReplies();
  // Has the eventfd, or with -1 none, signalled whenever a caller has given up or something is left
  // to be sent, and whenever the reply has come after all.
  void SignalLateReplies(int event);
  // The daemon's last message about the connection as a whole before it closed it. REQUIRES: lock
  // held.
  void set_farewell(const Error& error) { farewell_ = error; }
  [[nodiscard]] std::optional<Error> farewell();
  // Whether the connection is lost and the daemon has gone on since: it took in all requests, or
  // dropped them, long enough ago for a copy in whose midst it stood still to have ended.
  [[nodiscard]] bool Settled();
  // Takes the daemon for lost: it begins nothing more for this client once it goes on.
  void HangUp();
  // For watching alone. It stays open as long as the channel.
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  // Tells the owner if something is left to be sent: the caller may make no other call.
  void TellOfRest();
  // Appends one frame carrying the request id.
  using Encoder = std::function<Status(uint64_t request_id, std::vector<std::byte>* out)>;
  // `message` must outlive it.
  template <typename Message>
  [[nodiscard]] static Encoder EncoderOf(const Message& message, uint16_t flags) {
    return [&message, flags](uint64_t request_id, std::vector<std::byte>* out) {
      return wire::TryEncode(message, request_id, out, flags);
    };
  }

  // A reply that a caller waits for, on the caller's stack.
  struct Pending {
    uint64_t request_id = 0;
    wire::MessageType type{};
    std::function<Status(std::span<const std::byte>)> decode;
    std::optional<Error> refusal;
    std::vector<UniqueFd> descriptors;
    bool done = false;
  };
  // Lets the next thread send when it ends.
  class Turn {
   public:
    explicit Turn(Channel* channel) : channel_(*channel) {}
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Channel& channel_;
  };
  struct Waiter {
    std::condition_variable wake;
    const std::function<bool()>* done;
  };

  // How long a request waits to be sent. Without a deadline: as long as the send time-out allows.
  struct Patience {
    std::optional<Deadline> deadline = {};
    std::optional<size_t> sent_later_behind = {};  // see Hooks
  };

  [[nodiscard]] Status Exchange(Pending* pending, const Encoder& encode,
                                std::span<const int> descriptors, const Patience& patience,
                                const std::function<void(uint64_t)>& on_cancelled);
  // Encodes and sends one request with its descriptors, or has it sent later. `on_sent` runs under
  // mutex_. Errors: kTimeout "not_sent"; the encoder's; else kUnavailable.
  [[nodiscard]] Status Send(const Encoder& encode, std::span<const int> descriptors,
                            const Patience& patience, const std::function<void(uint64_t)>& on_sent);
  // Waits until no other thread sends. Errors: kTimeout "not_sent"; kUnavailable.
  [[nodiscard]] Status BeginSending(const std::optional<Deadline>& deadline);
  // The request begins at `request_begin`, behind the deferred frames.
  [[nodiscard]] Status SendBuffer(size_t request_begin, std::span<const int> descriptors,
                                  const Patience& patience);
  // The time is up with so many bytes sent. Errors: as Send.
  [[nodiscard]] Status GiveUpSending(size_t sent, size_t request_begin, const Patience& patience);
  // All behind the bytes that were sent goes ahead of the next request. REQUIRES: mutex_ is held.
  void PutBack(size_t sent);
  // False once the deadline has passed, or the connection is lost.
  [[nodiscard]] bool WaitWritable(Deadline deadline);
  // The daemon has taken in nothing for the send time-out. Errors: kUnavailable, unless it may.
  [[nodiscard]] Status FailUnlessPaused();

  // The functions below take mutex_ held by `lock` and return with it held.

  // Reads for all threads: waits for any of `events` until the deadline, then takes in the frames
  // that have arrived.
  // True if something had. REQUIRES: !reading_.
  bool Read(std::unique_lock<std::mutex>* lock, short events, Deadline deadline);
  [[nodiscard]] Status Receive();
  void DispatchAll();
  [[nodiscard]] Status Dispatch(const wire::Frame& frame);
  // The descriptors that came with the frame.
  [[nodiscard]] std::vector<UniqueFd> TakeDescriptors(const wire::Frame& frame);
  [[nodiscard]] Status Complete(Pending* pending, const wire::Frame& frame);
  void Fail(ErrorCode code, std::string reason, std::string context);
  void WakeSatisfied();
  void HandOver();

  const UniqueFd socket_;
  const int64_t send_timeout_ms_;
  const Owner owner_;

  // The thread that sends has these.
  std::vector<std::byte> send_buffer_;
  std::optional<Deadline> progress_by_;  // set while the socket is full, also between calls

  std::mutex mutex_;
  bool sending_ = false;  // one thread at a time
  std::condition_variable sent_;
  uint64_t last_request_id_ = 0;
  std::vector<Pending*> pending_;
  std::unordered_set<uint64_t> abandoned_;  // requests whose callers have given up
  int late_event_ = -1;
  std::vector<Waiter*> waiters_;
  std::vector<std::byte> deferred_output_;
  std::optional<Error> failure_;
  std::optional<Error> farewell_;
  std::optional<Deadline> settled_at_;
  // A thread is in Read; it alone touches the decoder and the descriptors.
  bool reading_ = false;
  wire::FrameDecoder decoder_;
  std::vector<UniqueFd> descriptors_;
};

template <typename Reply, typename Request>
Result<Reply> Channel::Call(const Request& request, Deadline deadline, const Hooks<Reply>& hooks,
                            std::span<UniqueFd> received, std::span<const int> to_send) {
  constexpr bool kOnDemand = std::is_same_v<Request, wire::Commit> ||
                             std::is_same_v<Request, wire::Release> ||
                             std::is_same_v<Request, wire::Tokens>;
  Reply reply;
  Pending pending;
  pending.type = Reply::kType;
  pending.decode = [&](std::span<const std::byte> payload) -> Status {
    KVT_ASSIGN_OR_RETURN(reply, wire::Decode<Reply>(payload));
    return hooks.on_reply ? hooks.on_reply(reply) : Status();
  };
  KVT_RETURN_IF_ERROR(Exchange(&pending, EncoderOf(request, kOnDemand ? wire::kFlagWantReply : 0),
                               to_send, {deadline, hooks.sent_later_behind}, hooks.on_cancelled));
  const size_t count = std::min(received.size(), pending.descriptors.size());
  std::move(pending.descriptors.begin(),
            pending.descriptors.begin() + static_cast<ptrdiff_t>(count), received.begin());
  return reply;
}

}  // namespace kvtier::client
