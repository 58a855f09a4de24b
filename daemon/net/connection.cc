// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/connection.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <utility>

#include "base/check.h"
#include "protocol/socket_io.h"

namespace kvtier {
namespace {

// Holds the longest acquire and its reply, so that neither side has to wait for the other in the
// middle of one. The kernel doubles it and cuts it to net.core.{r,w}mem_max.
constexpr int kSocketBufferBytes = 512 << 10;

// So that one client's flood of small requests does not keep the loop from the others.
constexpr int kMaxFramesPerEvent = 64;

void PrepareSocket(int socket) {
  // Failures leave a socket that works, with more wake-ups.
  ::fcntl(socket, F_SETFL, O_NONBLOCK);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
}

}  // namespace

Connection::Connection(EventLoop* loop, UniqueFd socket, const ConnectionLimits& limits,
                       ConnectionListener* listener)
    : socket_(std::move(socket)),
      limits_(limits),
      listener_(listener),
      decoder_(limits.max_frame_bytes),
      slow_reader_(loop),
      later_(loop),
      watch_(loop, socket_.get()) {
  PrepareSocket(socket_.get());
}

void Connection::Start() { WaitForMore(); }

void Connection::WaitForMore() {
  if (MayRead()) {
    if (!watch_.waiting_readable()) watch_.WaitReadable([this] { OnReadable(); });
  } else if (state_ == State::kOpen && !watch_.waiting_hang_up()) {
    // Who is not read must still be seen to go.
    watch_.WaitHangUp([this] {
      if (!MayRead()) End({ErrorCode::kUnavailable, "peer_closed", "hung up"});
    });
  }
}

void Connection::OnReadable() {
  if (!MayRead()) return;
  // Descriptors that a client sends along are closed: the protocol has no use for them.
  const Result<std::optional<size_t>> received =
      wire::Receive(socket_.get(), decoder_.Prepare(), nullptr);
  if (!received) return End(received.error());
  if (*received == size_t{0}) return End({ErrorCode::kUnavailable, "peer_closed", "end of stream"});
  if (received->has_value()) decoder_.Commit(**received);
  HandleFrames();
}

void Connection::HandleFrames() {
  batching_ = true;
  const bool more = HandOutSome();
  batching_ = false;
  Flush();
  if (more) {
    ContinueLater();
  } else {
    WaitForMore();
  }
}

bool Connection::HandOutSome() {
  for (int i = 0; i < kMaxFramesPerEvent; ++i) {
    if (!MayRead()) return false;
    const Result<std::optional<wire::Frame>> frame = decoder_.Next();
    if (!frame) CloseWith(frame.error());
    if (!frame || !frame->has_value()) return false;
    listener_->OnFrame(**frame);
  }
  return true;
}

void Connection::Resume() {
  KVT_CHECK(pauses_ > 0);
  --pauses_;
  if (MayRead() && !batching_) ContinueLater();
}

void Connection::FlushUnlessBatching() {
  congested_ = outbox_.bytes() > limits_.max_outbound_bytes;
  if (!batching_) Flush();
}

void Connection::Flush() {
  if (state_ == State::kClosed) return;
  const Result<size_t> sent = outbox_.SendTo(socket_.get());
  if (!sent) return End(sent.error());
  AfterSending(*sent);
}

void Connection::AfterSending(size_t sent) {
  if (outbox_.empty()) {
    slow_reader_.Cancel();
    if (state_ == State::kClosing) return End(close_reason_);
  } else {
    if (sent > 0 || !slow_reader_.running()) {
      slow_reader_.Start(limits_.slow_reader_timeout_ms, [this] {
        End({ErrorCode::kTimeout, "slow_reader", "replies were not read in time"});
      });
    }
    if (!watch_.waiting_writable()) watch_.WaitWritable([this] { Flush(); });
  }
  if (congested_ && outbox_.bytes() <= limits_.max_outbound_bytes / 2) {
    congested_ = false;
    ContinueLater();
  }
}

void Connection::CloseWith(const Error& error) {
  if (state_ != State::kOpen) return;
  // Not by Send, which might flush and end before the reason is known.
  outbox_.Append(
      [&](std::vector<std::byte>* out) { wire::Encode(wire::ErrorReply{error}, 0, out); });
  state_ = State::kClosing;
  close_reason_ = error;
  if (!batching_) Flush();
}

void Connection::End(const Error& why) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  close_reason_ = why;
  slow_reader_.Cancel();
  outbox_.Clear();
  // The client must be able to see that the session is over before its references are dropped.
  ::shutdown(socket_.get(), SHUT_RDWR);
  ContinueLater();
}

void Connection::ContinueLater() {
  if (!later_.running()) later_.Start(0, [this] { Continue(); });
}

void Connection::Continue() {
  if (state_ == State::kClosed) return listener_->OnClosed(close_reason_);
  if (on_drained_ && !congested_) std::exchange(on_drained_, nullptr)();
  if (MayRead()) HandleFrames();
}

void SendRefusal(int socket, const Error& error) {
  std::vector<std::byte> frame;
  wire::Encode(wire::ErrorReply{error}, 0, &frame);
  (void)wire::Send(socket, frame);
}

}  // namespace kvtier
