// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_peer.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "protocol/socket_io.h"

namespace kvtier {
namespace {

// Beyond this nothing is added before the peer reads: the batches that it has not read wait in the
// ring, which all peers share.
constexpr size_t kOutboxBytes = 256 << 10;
constexpr size_t kReceiveBytes = 4096;
// A batch, or a step of a snapshot: as many as fit in a turn take less than a millisecond together.
constexpr uint32_t kStepPrice = kTurnPrice / 8;
constexpr size_t kMaxTopics = 64;
constexpr size_t kMaxRequests = 16;
// A PING's context, which its PONG carries back (rfc.zeromq.org/spec/37).
constexpr size_t kPingTtlBytes = 2, kMaxPingContextBytes = 16;
// Ends an answer, as vLLM's publisher does: -1.
constexpr uint64_t kEndOfReplay = UINT64_MAX;

std::string BigEndian(uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(value >> shift & 0xff));
  }
  return bytes;
}

tl::unexpected<Error> Breach(std::string reason) {
  return MakeError(ErrorCode::kInvalidArgument, std::move(reason));
}

}  // namespace

EventFeed EventFeed::Live(EventStream* stream, EventPeerCounters* counters) {
  EventFeed feed(stream, counters, stream->ring().next());
  feed.BeginSnapshot(EventStream::Numbers::kNew);
  return feed;
}

// A number that was never given is of another daemon, whose batches say nothing of this one.
EventFeed EventFeed::Replay(EventStream* stream, EventPeerCounters* counters, uint64_t first) {
  const EventRing& ring = stream->ring();
  EventFeed feed(stream, counters, first);
  if (first < ring.first() || first > ring.next()) feed.BeginSnapshot(EventStream::Numbers::kOld);
  return feed;
}

void EventFeed::BeginSnapshot(EventStream::Numbers numbers) {
  snapshot_ = stream_->BeginSnapshot(numbers);
  ready_.clear();
  next_ = stream_->ring().next();
  if (snapshot_) ++counters_->snapshots;
}

std::optional<PublishedBatch> EventFeed::Next() {
  const EventRing& ring = stream_->ring();
  if (next_ < ring.first()) {
    counters_->lost += ring.first() - next_;
    BeginSnapshot(EventStream::Numbers::kNew);
  }
  while (snapshot_ && ready_.empty()) {
    for (PublishedBatch& batch : stream_->Continue(&*snapshot_)) ready_.push_back(std::move(batch));
    if (snapshot_->finished()) snapshot_.reset();
  }
  if (!ready_.empty()) {
    PublishedBatch batch = std::move(ready_.front());
    ready_.pop_front();
    return batch;
  }
  if (next_ == ring.next()) return std::nullopt;
  return ring[next_++];
}

EventPeer::EventPeer(const Environment& environment, EventPeerRole role, UniqueFd socket,
                     std::function<void()> ended)
    : environment_(environment),
      role_(role),
      socket_(std::move(socket)),
      ended_(std::move(ended)),
      turn_(environment.turns, environment.owner,
            [this](uint32_t quantum) { return TakeTurn(quantum); }),
      watch_(environment.loop, socket_.get()) {
  AppendZmtpGreeting(&out_);
  AppendZmtpReady(role == EventPeerRole::kSubscriber ? "PUB" : "ROUTER", &out_);
}

void EventPeer::Start() {
  Flush();
  WaitForMore();
}

void EventPeer::End() {
  if (std::exchange(over_, true)) return;
  ended_();
}

void EventPeer::WaitForMore() {
  if (over_ || watch_.waiting_readable()) return;
  watch_.WaitReadable([this] { Receive(); });
}

void EventPeer::Receive() {
  if (over_) return;
  // Answers that it leaves unread are not added to.
  if (unsent() > 2 * kOutboxBytes) return;
  std::array<std::byte, kReceiveBytes> bytes;
  const Result<std::optional<size_t>> received = wire::Receive(socket_.get(), bytes, nullptr);
  if (!received || (*received && **received == 0)) return End();
  if (*received) {
    decoder_.Feed(std::span(bytes).first(**received));
    if (const Status handled = HandleAll(); !handled) {
      ++environment_.counters->refused;
      return End();
    }
    // Bytes that are left wait for the socket, which then reads on.
    Flush();
    Pump();
  }
  WaitForMore();
}

Status EventPeer::HandleAll() {
  while (true) {
    KVT_ASSIGN_OR_RETURN(const std::optional<ZmtpFrame> frame, decoder_.Next());
    if (!frame) return {};
    KVT_RETURN_IF_ERROR(Handle(*frame));
  }
}

Status EventPeer::Handle(const ZmtpFrame& frame) {
  if (frame.command) {
    const std::optional<ZmtpCommand> command = ParseZmtpCommand(frame.body);
    if (!command) return Breach("zmtp_command");
    return HandleCommand(*command);
  }
  if (!ready_) return Breach("zmtp_not_ready");
  return role_ == EventPeerRole::kSubscriber ? HandleSubscription(frame) : HandleRequestPart(frame);
}

Status EventPeer::HandleCommand(const ZmtpCommand& command) {
  if (command.name == "READY") return HandleReady(ZmtpSocketType(command.data));
  if (!ready_ || command.name == "ERROR") return Breach("zmtp_not_ready");
  const bool subscriber = role_ == EventPeerRole::kSubscriber;
  if (command.name == "SUBSCRIBE" && subscriber) return Subscribe(command.data);
  if (command.name == "CANCEL" && subscriber) topics_.erase(std::string(command.data));
  if (command.name == "PING") {
    if (command.data.size() < kPingTtlBytes) return Breach("zmtp_ping");
    AppendZmtpCommand("PONG", command.data.substr(kPingTtlBytes, kMaxPingContextBytes), &out_);
  }
  return {};
}

Status EventPeer::HandleReady(std::string_view type) {
  const bool fits = role_ == EventPeerRole::kSubscriber
                        ? type == "SUB" || type == "XSUB"
                        : type == "REQ" || type == "DEALER" || type == "ROUTER";
  if (ready_ || !fits) return Breach("zmtp_socket_type");
  ready_ = true;
  return {};
}

// A message of one byte and a topic: 1 subscribes, 0 cancels.
Status EventPeer::HandleSubscription(const ZmtpFrame& frame) {
  if (frame.more || frame.body.empty()) return Breach("bad_subscription");
  const std::string_view topic = frame.body.substr(1);
  if (frame.body[0] == 1) return Subscribe(topic);
  if (frame.body[0] != 0) return Breach("bad_subscription");
  topics_.erase(std::string(topic));
  return {};
}

Status EventPeer::Subscribe(std::string_view topic) {
  if (topics_.size() >= kMaxTopics) return Breach("too_many_topics");
  awaits_snapshot_ |= topics_.emplace(topic).second;
  return {};
}

// Each snapshot takes numbers, for which all other subscribers read empty batches.
void EventPeer::BeginAwaited() {
  if (!awaits_snapshot_ || !environment_.may_snapshot()) return;
  awaits_snapshot_ = false;
  feed_ = EventFeed::Live(environment_.stream, environment_.counters);
}

// An empty part, then the number of the first batch that is wanted.
Status EventPeer::HandleRequestPart(const ZmtpFrame& frame) {
  const bool last = request_parts_ == 1;
  if (frame.more == last || frame.body.size() != (last ? sizeof(uint64_t) : 0)) {
    return Breach("bad_replay_request");
  }
  request_parts_ = last ? 0 : 1;
  if (!last) return {};
  if (requests_.size() >= kMaxRequests) return Breach("too_many_requests");
  uint64_t first = 0;
  for (const char byte : frame.body) first = first << 8 | static_cast<uint8_t>(byte);
  requests_.push_back(first);
  NextRequest();
  return {};
}

void EventPeer::NextRequest() {
  if (feed_ || requests_.empty()) return;
  ++environment_.counters->replays;
  feed_ = EventFeed::Replay(environment_.stream, environment_.counters, requests_.front());
  requests_.pop_front();
}

bool EventPeer::Wanted(const std::string& topic) const {
  if (role_ == EventPeerRole::kReplay) return true;
  return std::ranges::any_of(topics_,
                             [&](const std::string& prefix) { return topic.starts_with(prefix); });
}

void EventPeer::Append(std::string_view topic, uint64_t sequence, std::string_view payload) {
  if (role_ == EventPeerRole::kReplay) AppendZmtpPart("", true, &out_);
  AppendZmtpPart(topic, true, &out_);
  AppendZmtpPart(BigEndian(sequence), true, &out_);
  AppendZmtpPart(payload, false, &out_);
}

bool EventPeer::Fill(uint32_t most, uint32_t* steps) {
  for (; feed_; ++*steps) {
    if (*steps == most || unsent() >= kOutboxBytes) return true;
    const std::optional<PublishedBatch> batch = feed_->Next();
    if (!batch && role_ == EventPeerRole::kSubscriber) return false;
    if (!batch) {
      Append("", kEndOfReplay, "");
      feed_.reset();
      NextRequest();
    } else if (Wanted(*batch->topic)) {
      Append(*batch->topic, batch->sequence, *batch->payload);
    }
  }
  return false;
}

// Peers that have much to be sent, such as who asks for replays without end, hold up neither each
// other nor clients for longer than one of them alone.
uint32_t EventPeer::TakeTurn(uint32_t quantum) {
  if (over_) return 0;
  BeginAwaited();
  uint32_t steps = 0;
  const bool more = Fill(std::max(quantum / kStepPrice, 1u), &steps);
  Flush();
  if (more && !over_ && !watch_.waiting_writable()) Pump();
  return steps * kStepPrice;
}

void EventPeer::Flush() {
  const size_t before = unsent();
  while (unsent() > 0 && !watch_.waiting_writable()) {
    const auto rest = std::as_bytes(std::span(out_)).subspan(sent_);
    const Result<std::optional<size_t>> sent = wire::Send(socket_.get(), rest);
    if (!sent) return End();
    if (!*sent) {
      watch_.WaitWritable([this] {
        // Not in a turn, which comes later than Receive may: nothing would then wake it.
        Flush();
        Pump();
        WaitForMore();
      });
      break;
    }
    sent_ += **sent;
  }
  if (unsent() == 0) {
    unread_since_ms_.reset();
  } else if (unsent() < before || !unread_since_ms_) {
    unread_since_ms_ = environment_.clock->MonotonicMs();
  }
  // Also of a peer that never has read all.
  if (unsent() > 0 && sent_ < kOutboxBytes) return;
  out_.erase(0, sent_);
  sent_ = 0;
}

}  // namespace kvtier
