// SPDX-License-Identifier: Apache-2.0
#include "client/core/channel.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "client/core/own_thread.h"
#include "protocol/socket_io.h"

namespace kvtier::client {
namespace {

// While another thread reads, a blocked sender looks this often whether it should read itself.
constexpr int64_t kSenderRecheckMs = 10;
// Descriptors received for replies that have not been decoded yet; a sound daemon sends fewer.
constexpr size_t kMaxUnclaimedDescriptors = 4;
// Reads in one go before what came is looked at: a whole frame of the largest size.
constexpr int kReadsPerTurn = 32;
// A sender's memory for requests larger than this is given back after use.
constexpr size_t kSendBufferKeptBytes = 1 << 20;

// How many descriptors come with the frame.
size_t DescriptorsOf(const wire::Frame& frame) {
  switch (static_cast<wire::MessageType>(frame.type)) {
    case wire::MessageType::kHelloReply:
    case wire::MessageType::kAttachReply:
    case wire::MessageType::kWorkspaceReply:
      return 1;
    case wire::MessageType::kTakeMemoryReply: {
      const auto reply = wire::Decode<wire::TakeMemoryReply>(frame.payload);
      return reply ? reply->descriptors() : 0;
    }
    default:
      return 0;
  }
}

// Far longer than a copy.
constexpr int64_t kLastCopiesMs = 2000;

Error NotSent() {
  return {ErrorCode::kTimeout, "not_sent", "the daemon took in no request in time"};
}

}  // namespace

Channel::Channel(UniqueFd socket, uint32_t max_frame_bytes, int64_t send_timeout_ms, Owner owner)
    : socket_(std::move(socket)),
      send_timeout_ms_(send_timeout_ms),
      owner_(std::move(owner)),
      decoder_(max_frame_bytes) {}

Channel::~Channel() = default;

Status Channel::Exchange(Pending* pending, const Encoder& encode, std::span<const int> descriptors,
                         const Patience& patience,
                         const std::function<void(uint64_t)>& on_cancelled) {
  // Frames find no call that has ended, also if it ran out of memory.
  struct Registration {
    ~Registration() {
      const std::lock_guard lock(channel.mutex_);
      std::erase(channel.pending_, pending);
    }
    Channel& channel;
    Pending* const pending;
  };
  const Registration registration{*this, pending};
  const Status sent = Send(encode, descriptors, patience, [&](uint64_t request_id) {
    pending->request_id = request_id;
    pending_.push_back(pending);
  });
  const Status waited = sent ? WaitUntil([&] { return pending->done; }, *patience.deadline) : sent;
  const bool abandoned = [&] {
    const std::lock_guard lock(mutex_);
    std::erase(pending_, pending);
    if (pending->done || !sent || failure_) return false;
    abandoned_.insert(pending->request_id);
    SignalEvent(late_event_);
    if (on_cancelled) on_cancelled(pending->request_id);
    return true;
  }();
  if (abandoned && owner_.on_abandoned) owner_.on_abandoned();
  if (pending->refusal) return tl::unexpected(*std::move(pending->refusal));
  if (pending->done) return {};
  return waited;
}

Status Channel::Send(const Encoder& encode, std::span<const int> descriptors,
                     const Patience& patience, const std::function<void(uint64_t)>& on_sent) {
  if (Status begun = BeginSending(patience.deadline); !begun) {
    const std::lock_guard lock(mutex_);
    const bool may_wait =
        patience.sent_later_behind && deferred_output_.size() <= *patience.sent_later_behind;
    if (!may_wait || failure_) return begun;
    std::vector<std::byte> request;
    ++last_request_id_;
    if (on_sent) on_sent(last_request_id_);
    KVT_RETURN_IF_ERROR(encode(last_request_id_, &request));
    deferred_output_.insert(deferred_output_.end(), request.begin(), request.end());
    SignalEvent(late_event_);
    return {};
  }
  const Turn turn(this);
  send_buffer_.clear();
  uint64_t request_id;
  {
    const std::lock_guard lock(mutex_);
    request_id = ++last_request_id_;
    if (on_sent) on_sent(request_id);
    send_buffer_.swap(deferred_output_);
  }
  const size_t request_begin = send_buffer_.size();
  // Without a request, deferred frames are still to be sent.
  const auto put_back = [&] {
    const std::lock_guard lock(mutex_);
    send_buffer_.resize(request_begin);
    PutBack(0);
  };
  try {
    if (Status encoded = encode(request_id, &send_buffer_); !encoded) {
      put_back();
      return encoded;
    }
  } catch (...) {  // Memory has run out.
    put_back();
    throw;
  }
  const Status status = SendBuffer(request_begin, descriptors, patience);
  if (send_buffer_.capacity() > kSendBufferKeptBytes) send_buffer_ = {};
  return status;
}

Status Channel::BeginSending(const std::optional<Deadline>& deadline) {
  std::unique_lock lock(mutex_);
  const auto is_free = [&] { return failure_ || !sending_; };
  if (!deadline) {
    sent_.wait(lock, is_free);
  } else if (!sent_.wait_until(lock, *deadline, is_free)) {
    return tl::unexpected(NotSent());
  }
  if (failure_) return tl::unexpected(*failure_);
  sending_ = true;
  return {};
}

Channel::Turn::~Turn() {
  const std::lock_guard lock(channel_.mutex_);
  channel_.sending_ = false;
  channel_.sent_.notify_one();
}

Status Channel::SendBuffer(size_t request_begin, std::span<const int> descriptors,
                           const Patience& patience) {
  const Deadline give_up = patience.deadline.value_or(Deadline::max());
  size_t begin = 0;
  while (begin < send_buffer_.size()) {
    // Deferred frames are sent on their own ahead of descriptors, which belong to the request.
    const bool deferred = !descriptors.empty() && begin < request_begin;
    const size_t end = deferred ? request_begin : send_buffer_.size();
    const Result<std::optional<size_t>> sent =
        wire::Send(socket_.get(), std::span(send_buffer_).subspan(begin, end - begin),
                   begin == request_begin ? descriptors : std::span<const int>());
    if (!sent) {
      std::unique_lock lock(mutex_);
      // A daemon that turns its client away may have said why.
      if (!failure_ && !reading_) (void)Read(&lock, POLLIN, DeadlineIn(0));
      Fail(ErrorCode::kUnavailable, "connection_lost", sent.error().ToString());
      return tl::unexpected(*failure_);
    }
    if (*sent) {
      begin += **sent;
      progress_by_.reset();
      continue;
    }
    if (!progress_by_) progress_by_ = DeadlineIn(send_timeout_ms_);
    if (WaitWritable(std::min(give_up, *progress_by_))) continue;
    if (PollTimeoutMs(*progress_by_) == 0) {
      KVT_RETURN_IF_ERROR(FailUnlessPaused());
      progress_by_.reset();
    }
    if (PollTimeoutMs(give_up) == 0) return GiveUpSending(begin, request_begin, patience);
  }
  return {};
}

Status Channel::GiveUpSending(size_t sent, size_t request_begin, const Patience& patience) {
  const std::lock_guard lock(mutex_);
  if (failure_) return tl::unexpected(*failure_);
  // A daemon that pauses is waited for anew once it does not.
  if (owner_.may_pause && owner_.may_pause()) progress_by_.reset();
  // Half a frame cannot be taken back.
  bool goes = sent > request_begin;
  if (!goes && patience.sent_later_behind) {
    goes = request_begin - sent + deferred_output_.size() <= *patience.sent_later_behind;
  }
  if (!goes) send_buffer_.resize(request_begin);
  PutBack(sent);
  return goes ? Status() : tl::unexpected(NotSent());
}

void Channel::PutBack(size_t sent) {
  send_buffer_.erase(send_buffer_.begin(), send_buffer_.begin() + static_cast<ptrdiff_t>(sent));
  try {
    send_buffer_.insert(send_buffer_.end(), deferred_output_.begin(), deferred_output_.end());
  } catch (const std::bad_alloc&) {  // Half a frame may be lost.
    Fail(ErrorCode::kUnavailable, "out_of_memory", {});
  }
  deferred_output_.swap(send_buffer_);
  if (!deferred_output_.empty()) SignalEvent(late_event_);
}

void Channel::TellOfRest() {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || deferred_output_.empty()) return;
  }
  if (owner_.on_abandoned) owner_.on_abandoned();
}

Status Channel::FailUnlessPaused() {
  const std::lock_guard lock(mutex_);
  if (!failure_ && owner_.may_pause && owner_.may_pause()) return {};
  Fail(ErrorCode::kUnavailable, "send_timeout", "the daemon does not take in requests");
  return tl::unexpected(*failure_);
}

// Reads meanwhile, unless another thread does: the daemon may take in nothing before its replies
// are taken from it.
bool Channel::WaitWritable(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (failure_ || PollTimeoutMs(deadline) == 0) return false;
  if (!reading_) {
    (void)Read(&lock, POLLIN | POLLOUT, deadline);
    HandOver();
    return true;
  }
  lock.unlock();
  pollfd poll_fd{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  (void)::poll(&poll_fd, 1, PollTimeoutMs(std::min(deadline, DeadlineIn(kSenderRecheckMs))));
  return true;
}

Status Channel::WaitUntil(const std::function<bool()>& done, Deadline deadline) {
  std::unique_lock lock(mutex_);
  bool has_read = false;
  while (!done()) {
    if (failure_) return tl::unexpected(*failure_);
    const bool expired = PollTimeoutMs(deadline) == 0;
    if (expired && (has_read || reading_)) {
      HandOver();
      return MakeError(ErrorCode::kTimeout, "request_timeout", "the daemon did not answer in time");
    }
    if (!reading_) {
      (void)Read(&lock, POLLIN, deadline);
      has_read = true;
      continue;
    }
    Waiter waiter{.wake = {}, .done = &done};
    waiters_.push_back(&waiter);
    waiter.wake.wait_until(lock, deadline);
    std::erase(waiters_, &waiter);
  }
  HandOver();
  return {};
}

bool Channel::Poll() {
  std::unique_lock lock(mutex_);
  // All that is there is read: behind the last frame there may be the end of the stream.
  while (!failure_ && !reading_ && Read(&lock, POLLIN, DeadlineIn(0))) {
  }
  HandOver();
  if (failure_) return false;
  if (!reading_) return true;
  lock.unlock();
  // The thread that reads will find out; this one wants to know now.
  pollfd poll_fd{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&poll_fd, 1, 0) == 0;
}

bool Channel::Read(std::unique_lock<std::mutex>* lock, short events, Deadline deadline) {
  reading_ = true;
  lock->unlock();
  pollfd poll_fd{.fd = socket_.get(), .events = events, .revents = 0};
  // EINTR looks like a time-out here; callers look at the clock themselves.
  const int ready = ::poll(&poll_fd, 1, PollTimeoutMs(deadline));
  const bool readable = ready > 0 && (poll_fd.revents & ~POLLOUT) != 0;
  try {
    const Status received = readable ? Receive() : Status();
    lock->lock();
    if (!failure_) DispatchAll();
    if (!received && !failure_) {
      Fail(ErrorCode::kUnavailable, "connection_lost", received.error().ToString());
    }
  } catch (const std::bad_alloc&) {
    // A part of what came is lost.
    if (!lock->owns_lock()) lock->lock();
    Fail(ErrorCode::kUnavailable, "out_of_memory", {});
  }
  reading_ = false;
  WakeSatisfied();
  return readable;
}

// Called without the lock by the thread that reads.
Status Channel::Receive() {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    const std::span<std::byte> space = decoder_.Prepare();
    KVT_ASSIGN_OR_RETURN(const std::optional<size_t> received,
                         wire::Receive(socket_.get(), space, &descriptors_));
    if (!received) return {};
    if (*received == 0) return MakeError(ErrorCode::kUnavailable, "peer_closed");
    decoder_.Commit(*received);
    // A read that did not fill the space has emptied the socket.
    if (*received < space.size()) return {};
  }
  return {};
}

void Channel::DispatchAll() {
  while (!failure_) {
    const Result<std::optional<wire::Frame>> frame = decoder_.Next();
    Status status;
    if (!frame) {
      status = tl::unexpected(frame.error());
    } else if (!*frame) {
      break;
    } else {
      status = Dispatch(**frame);
    }
    if (!status) Fail(ErrorCode::kUnavailable, "protocol_violation", status.error().ToString());
  }
  if (!failure_ && descriptors_.size() > kMaxUnclaimedDescriptors) {
    Fail(ErrorCode::kUnavailable, "protocol_violation", "descriptors that belong to no reply");
  }
}

Status Channel::Dispatch(const wire::Frame& frame) {
  const auto it = std::find_if(pending_.begin(), pending_.end(), [&](const Pending* pending) {
    return pending->request_id == frame.request_id;
  });
  if (it != pending_.end() && !(*it)->done) return Complete(*it, frame);
  if (frame.request_id > last_request_id_) {
    return MakeError(
        ErrorCode::kCorrupt, "unknown_request_id",
        fmt::format("{} with id {}", wire::MessageTypeName(frame.type), frame.request_id));
  }
  const bool is_late = abandoned_.erase(frame.request_id) > 0;
  (void)TakeDescriptors(frame);
  const Status taken = owner_.sink(frame);
  if (is_late) SignalEvent(late_event_);
  return taken;
}

std::vector<UniqueFd> Channel::TakeDescriptors(const wire::Frame& frame) {
  const size_t count = std::min(DescriptorsOf(frame), descriptors_.size());
  const auto end = descriptors_.begin() + static_cast<ptrdiff_t>(count);
  std::vector<UniqueFd> taken(std::make_move_iterator(descriptors_.begin()),
                              std::make_move_iterator(end));
  descriptors_.erase(descriptors_.begin(), end);
  return taken;
}

Status Channel::Complete(Pending* pending, const wire::Frame& frame) {
  if (frame.type == static_cast<uint16_t>(wire::MessageType::kError)) {
    KVT_ASSIGN_OR_RETURN(wire::ErrorReply reply, wire::Decode<wire::ErrorReply>(frame.payload));
    pending->refusal = std::move(reply.error);
  } else if (frame.type == static_cast<uint16_t>(pending->type)) {
    KVT_RETURN_IF_ERROR(pending->decode(frame.payload));
    pending->descriptors = TakeDescriptors(frame);
  } else {
    return MakeError(ErrorCode::kCorrupt, "unexpected_reply",
                     fmt::format("{} to a request for {}", wire::MessageTypeName(frame.type),
                                 wire::MessageTypeName(pending->type)));
  }
  pending->done = true;
  return {};
}

Status Channel::SendDeferred() {
  return Send([](uint64_t, std::vector<std::byte>*) { return Status(); }, {}, {}, {});
}

bool Channel::AwaitsLateReplies() {
  const std::lock_guard lock(mutex_);
  return !failure_ && !abandoned_.empty();
}

void Channel::SignalLateReplies(int event) {
  const std::lock_guard lock(mutex_);
  late_event_ = event;
}

std::optional<Error> Channel::farewell() {
  const std::lock_guard lock(mutex_);
  return farewell_;
}

void Channel::HangUp() {
  const std::lock_guard lock(mutex_);
  Fail(ErrorCode::kUnavailable, "hung_up", "the application gave the daemon up");
}

bool Channel::Settled() {
  const std::lock_guard lock(mutex_);
  if (!failure_) return false;
  int unread = 0;
  if (!settled_at_ && ::ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread == 0) {
    settled_at_ = DeadlineIn(kLastCopiesMs);
  }
  return settled_at_ && PollTimeoutMs(*settled_at_) == 0;
}

void Channel::Fail(ErrorCode code, std::string reason, std::string context) {
  if (failure_) return;
  if (farewell_) context += "; the daemon said: " + farewell_->ToString();
  failure_ = Error{code, std::move(reason), std::move(context)};
  // The descriptor stays open until no thread can be polling it; the daemon learns at once.
  (void)::shutdown(socket_.get(), SHUT_RDWR);
  if (owner_.on_lost) owner_.on_lost();
  for (Waiter* waiter : waiters_) waiter->wake.notify_one();
  sent_.notify_all();
}

void Channel::WakeSatisfied() {
  for (Waiter* waiter : waiters_) {
    if (failure_ || (*waiter->done)()) waiter->wake.notify_one();
  }
}

// A thread that stops waiting leaves the reading to another one that waits.
void Channel::HandOver() {
  if (!reading_ && !waiters_.empty()) waiters_.front()->wake.notify_one();
}

}  // namespace kvtier::client
