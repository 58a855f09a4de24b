// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/connection.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/result.h"
#include "daemon/runtime/process.h"
#include "protocol/socket_io.h"

namespace kvtier {
namespace {

// Holds the longest acquire and its reply, so that neither side has to wait for the other in the
// middle of one. The kernel doubles the value and cuts it to net.core.{r,w}mem_max.
constexpr int kSocketBufferBytes = 512 << 10;

// The price of a frame besides the items that it names, so that a flood of small requests takes no
// more of the loop than one of long requests.
constexpr uint32_t kFramePrice = 16;
// Copying so many received bytes costs about as much as an item.
constexpr size_t kBytesPerItem = 256;

// A step that has begun always works on some items, however little of the turn is left; otherwise a
// request could take turns without getting on.
constexpr uint32_t kMinBudget = 16;

// To receive with an eye on descriptors costs as much as this many items.
constexpr size_t kGuardedPrice = 4;

// The lent memory, what keeps new pages from it, and the table beside it.
constexpr uint64_t kDescriptorsPerRegion = 3;

// As the limits say; `part` 2: the half.
bool HasUnsent(const Outbox& outbox, const ConnectionLimits& limits, size_t part) {
  return outbox.bytes() > limits.max_outbound_bytes / part ||
         outbox.descriptors() > kMaxUnreadDescriptors / part;
}

void PrepareSocket(int socket) {
  // Failures leave a socket that works, with more wake-ups.
  ::fcntl(socket, F_SETFL, O_NONBLOCK);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kSocketBufferBytes, sizeof(kSocketBufferBytes));
  // Otherwise descriptors that were sent with an urgent byte are closed within recvmsg, which skips
  // it, and no look into the socket shows them.
  constexpr int kOn = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_OOBINLINE, &kOn, sizeof(kOn));
}

}  // namespace

// The other halves are for clients, pools, files and threads.
uint64_t MaxRegions() {
  return std::min(MostDescriptors() / kDescriptorsPerRegion, MostMappings()) / 2;
}

Connection::Connection(Network* network, const std::string& tenant, UniqueFd socket,
                       const ConnectionLimits& limits, ConnectionListener* listener)
    : network_(network),
      socket_(std::move(socket), &network->closer, tenant),
      limits_(limits),
      listener_(listener),
      decoder_(limits.max_frame_bytes),
      descriptors_(&socket_, &network->closer, tenant),
      outbox_(network->loop, &socket_, &network->sent, tenant),
      slow_reader_(network->loop),
      later_(network->loop),
      turns_(&network->turns, tenant, [this](uint32_t quantum) { return TakeTurn(quantum); }),
      watch_(network->loop, socket_.get()) {
  PrepareSocket(socket_.get());
}

void Connection::Start() { WaitForMore(); }

void Connection::WaitForMore() {
  if (MayRead()) {
    if (watch_.waiting_readable()) return;
    watch_.WaitReadable([this] {
      readable_ = true;
      if (MayRead()) turns_.Ready();
    });
  } else if (state_ == State::kOpen && !watch_.waiting_hang_up()) {
    // A client that is not read from must still be seen to go.
    watch_.WaitHangUp([this] {
      if (!MayRead()) End({ErrorCode::kUnavailable, "peer_closed", "hung up"}, EndedBy::kPeer);
    });
  }
}

// While `batching_` is set, sends only queue: the replies of all frames of a turn leave with one
// system call at its end. Flush may end the connection; then MayRead is false, and WaitForMore does
// nothing.
uint32_t Connection::TakeTurn(uint32_t quantum) {
  spent_ = 0;
  quantum_ = quantum;
  idle_ = false;
  batching_ = true;
  const bool more = Work();
  batching_ = false;
  Flush();
  if (more) {
    turns_.Ready();
  } else {
    WaitForMore();
  }
  return spent_;
}

bool Connection::Work() {
  while (MayWork()) {
    if (spent_ >= quantum_) return true;
    if (steps_.next) {
      // A step that could not finish waits for the next turn. If the connection was paused,
      // congested or closed within the step, Resume or Continue asks for that turn, not the caller.
      if (steps_.next()) return MayWork();
      steps_.next = nullptr;
      continue;
    }
    if (!held_) {
      const Result<std::optional<wire::Frame>> frame = decoder_.Next();
      if (!frame) {
        CloseWith(frame.error());
        return false;
      }
      held_ = *frame;
    }
    if (held_) {
      if (!HandOut(*held_)) return true;
      held_.reset();
    } else if (!std::exchange(readable_, false) || !ReceiveOnce()) {
      return false;
    }
  }
  return false;
}

bool Connection::HandOut(const wire::Frame& frame) {
  // To decode a long frame is one step, which is too long for a turn that passes the others.
  if (quantum_ < kTurnPrice && frame.payload.size() > size_t{quantum_} * kBytesPerItem)
    return false;
  Spend(kFramePrice);
  listener_->OnFrame(frame);
  descriptors_.Clear();
  return true;
}

// The rest of the quantum, in items.
uint32_t Connection::budget() const {
  return std::max(quantum_ - std::min(quantum_, spent_), kMinBudget);
}

// Nothing is received before it is known to come without descriptors: recvmsg would put them into
// this process's table, or drop their last references, which may take as long as the peer likes.
bool Connection::ReceiveOnce() {
  if (deaf_ && unread_ == 0) {
    End(*deaf_, EndedBy::kPeer);
    return false;
  }
  // As much as the turn may cost: what one connection sends at once can be many turns' worth.
  std::span<std::byte> space = decoder_.Prepare();
  space = space.first(std::min<size_t>(space.size(), size_t{quantum_} * kBytesPerItem));
  if (descriptors_.expects()) return ReceiveWithDescriptors(space);
  const Result<std::optional<wire::Waiting>> looked = wire::Peek(socket_.get(), space);
  if (!looked) return Received(tl::unexpected(looked.error()));
  if (!*looked) return false;
  const wire::Waiting& waiting = **looked;
  if (waiting.bytes == 0) return Received(size_t{0});
  if (waiting.descriptors) {
    const Status admitted = descriptors_.Expect(waiting.bytes);
    if (admitted) return ReceiveWithDescriptors(space);
    CloseWith(admitted.error());
    return false;
  }
  // Bytes that did not fit are still there; the socket is asked again when these have been handled.
  readable_ = waiting.bytes == space.size();
  return Received(wire::Receive(socket_.get(), space.first(waiting.bytes), nullptr));
}

// Not beyond the end of a frame, and of a frame the first byte alone, so that it is known which
// descriptors came with it.
bool Connection::ReceiveWithDescriptors(std::span<std::byte> space) {
  const bool begins_frame = decoder_.buffered_bytes() == 0;
  const size_t wanted = begins_frame ? 1 : decoder_.missing_bytes();
  const DescriptorInbox::Received received = descriptors_.Receive(space, wanted, begins_frame);
  Spend(kGuardedPrice + received.descriptors);
  readable_ = true;
  return Received(received.bytes);
}

bool Connection::Received(const Result<std::optional<size_t>>& received) {
  if (!received) {
    End(received.error(), EndedBy::kPeer);
  } else if (*received == size_t{0}) {
    End({ErrorCode::kUnavailable, "peer_closed", "end of stream"}, EndedBy::kPeer);
  } else if (received->has_value()) {
    decoder_.Commit(**received);
    Spend(**received / kBytesPerItem);
    unread_ -= std::min(unread_, **received);
    readable_ |= deaf();
    return true;
  }
  return false;
}

// `held_` points into the decoder's buffer, which must then stay as it is.
void Connection::GiveBackMemory() {
  if (std::exchange(idle_, true) && !held_) decoder_.ReleaseUnused();
}

// The turn is taken in a later event, because Resume is called from callbacks of the cache. Within
// a turn of this connection the loop in Work goes on by itself.
void Connection::Resume() {
  KVT_CHECK(pauses_ > 0);
  --pauses_;
  if (MayWork() && !batching_) turns_.Ready();
}

// Congestion is judged before sending: bytes that the kernel takes in this call count again in
// AfterSending.
void Connection::FlushUnlessBatching() {
  congested_ |= HasUnsent(outbox_, limits_, 1);
  if (!batching_) Flush();
}

void Connection::Flush() {
  if (state_ == State::kClosed) return;
  const Result<size_t> sent = outbox_.Send();
  if (sent) return AfterSending(*sent);
  if (state_ != State::kOpen || deaf_) return End(sent.error(), EndedBy::kPeer);
  BecomeDeaf(sent.error());
}

// A client that gives back its blocks and closes its connection may have a load's event on the way.
// If its last requests were dropped, its blocks would stay out of use for as long as its process
// lives.
void Connection::BecomeDeaf(const Error& why) {
  deaf_ = why;
  outbox_.Clear();
  congested_ = false;
  slow_reader_.Cancel();
  int waiting = 0;
  if (::ioctl(socket_.get(), FIONREAD, &waiting) == 0) unread_ = static_cast<size_t>(waiting);
  readable_ = true;
  if (pauses_ > 0) {
    End(why, EndedBy::kPeer);
  } else {
    ContinueLater();
  }
}

void Connection::AfterSending(size_t sent) {
  if (outbox_.empty()) {
    slow_reader_.Cancel();
    if (state_ == State::kClosing) return End(close_reason_, EndedBy::kDaemon);
  } else {
    if (sent > 0 || !slow_reader_.running()) {
      slow_reader_.Start(limits_.slow_reader_timeout_ms, [this] {
        End(outbox_.stall().value_or(
                Error{ErrorCode::kTimeout, "slow_reader", "replies were not read in time"}),
            EndedBy::kDaemon);
      });
    }
    if (outbox_.stall()) {
      outbox_.Retry([this] { Flush(); });
    } else if (!watch_.waiting_writable()) {
      watch_.WaitWritable([this] { Flush(); });
    }
  }
  // Half the limit, so that a slow reader does not switch the connection on and off with every
  // frame.
  if (congested_ && !HasUnsent(outbox_, limits_, 2)) {
    congested_ = false;
    ContinueLater();
  }
}

void Connection::CloseWith(const Error& error) {
  if (state_ != State::kOpen) return;
  // Send is not used here: it might flush and end before the reason is known.
  outbox_.Append(
      [&](std::vector<std::byte>* out) { wire::Encode(wire::ErrorReply{error}, 0, out); });
  state_ = State::kClosing;
  close_reason_ = error;
  if (!batching_) Flush();
}

// The listener is told by a later event, since End may be called from within one of its own calls.
void Connection::End(const Error& why, EndedBy by) {
  if (state_ == State::kEnding || state_ == State::kClosed) return;
  state_ = State::kEnding;
  close_reason_ = deaf_.value_or(why);
  slow_reader_.Cancel();
  outbox_.Clear();
  steps_.next = nullptr;
  ask_listener_ = by == EndedBy::kDaemon;
  if (ask_listener_) {
    ContinueLater();
  } else {
    ShutDown();
  }
}

void Connection::ShutDown() {
  state_ = State::kClosed;
  // The client must be able to see that the session is over before its references are dropped.
  ::shutdown(socket_.get(), SHUT_RDWR);
  ContinueLater();
}

void Connection::ContinueLater() {
  if (!later_.running()) later_.Start(0, [this] { Continue(); });
}

void Connection::Continue() {
  if (state_ == State::kEnding && std::exchange(ask_listener_, false)) {
    return listener_->OnEnding([this] { ShutDown(); });
  }
  if (state_ == State::kClosed) return listener_->OnClosed(close_reason_);
  if (on_drained_ && !congested_) std::exchange(on_drained_, nullptr)();
  if (MayWork()) turns_.Ready();
}

void SendRefusal(int socket, const Error& error) {
  std::vector<std::byte> frame;
  wire::Encode(wire::ErrorReply{error}, 0, &frame);
  (void)wire::Send(socket, frame);
}

}  // namespace kvtier
