// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/resp/resp_lane.h"

#include <algorithm>
#include <utility>

#include "base/posix.h"

namespace kvtier {
namespace {

// Under way at a time. Replies come while the rest is still being sent, so more would only keep the
// first waiting.
constexpr size_t kMostCalls = 64;
constexpr size_t kMostPayloadBytes = size_t{4} << 20;
// While calls of several tenants wait, and while one tenant's do: as many as its longest question
// has.
constexpr size_t kMostCommands = 1024, kMostOfOneTenant = 4096;

void AddCommands(const RespCall& call, std::vector<RespCommand>* commands) {
  size_t next = 0;
  for (const size_t length : call.lengths) {
    RespCommand& command = commands->emplace_back();
    for (const size_t end = next + length; next < end; ++next) {
      const std::string& word = call.words[next];
      command.push_back(word.empty() ? call.payload : std::string_view(word));
    }
  }
}

}  // namespace

RespLane::RespLane(const RespEndpoint& endpoint, HostAddresses::Resolve resolve)
    : connection_(endpoint, std::move(resolve)), thread_([this] { Work(); }) {}

RespLane::~RespLane() {
  Interrupt();
  thread_.join();
}

void RespLane::Interrupt() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  connection_.Interrupt();
}

void RespLane::Add(RespCall call) {
  std::vector<RespCall> calls;
  calls.push_back(std::move(call));
  AddAll(std::move(calls));
}

void RespLane::AddAll(std::vector<RespCall> calls) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      for (RespCall& call : calls) waiting_.Add(std::move(call));
      wake_.notify_one();
      return;
    }
  }
  for (const RespCall& call : calls) call.ended(KVT_COLD_UNAVAILABLE, "the store is being closed");
}

std::vector<RespCall> RespLane::Take() {
  std::unique_lock lock(mutex_);
  if (sent_.empty()) wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  // Late ones take no room: they are not sent.
  const auto now = std::chrono::steady_clock::now();
  std::vector<RespCall> calls = waiting_.TakeLate(now);
  size_t room = kMostCalls - sent_.size(), bytes = sent_bytes_, commands = sent_commands_;
  while (!waiting_.empty() && room > 0 && bytes < kMostPayloadBytes) {
    const bool is_shared = waiting_.HasOthersThan(waiting_.first().tenant);
    if (commands >= (is_shared ? kMostCommands : kMostOfOneTenant)) break;
    RespCall& call = calls.emplace_back(waiting_.TakeFirst());
    --room;
    bytes += call.payload.size();
    commands += call.lengths.size();
  }
  // Late ones may stand behind those that were taken, and the next reply may be minutes away.
  for (RespCall& late : waiting_.TakeLate(now)) calls.push_back(std::move(late));
  return calls;
}

// Sends calls that come while answers are outstanding before it waits for the next answer, so that
// the server always has something to do.
void RespLane::Work() {
  BlockAllSignals();
  for (;;) {
    std::vector<RespCall> calls = Take();
    if (calls.empty() && sent_.empty()) return;
    if (!calls.empty()) Send(std::move(calls));
    if (!sent_.empty()) ReceiveOne();
  }
}

// A call that was given up is not sent: a server that was away for a while is not to be busy
// with questions of that time.
void RespLane::Send(std::vector<RespCall> calls) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<RespCommand> commands;
  for (RespCall& call : calls) {
    if (call.lengths.empty()) {
      call.ended(KVT_COLD_OK, {});
      continue;
    }
    if (call.deadline <= now) {
      call.ended(KVT_COLD_UNSENT, "not sent in time");
      continue;
    }
    sent_bytes_ += call.payload.size();
    sent_commands_ += call.lengths.size();
    // The commands are views of the words, which stay where they are when the call is moved.
    sent_.push_back({.call = std::move(call)});
    AddCommands(sent_.back().call, &commands);
  }
  if (!commands.empty() && !connection_.Send(commands, sent_.front().call.deadline)) FailSent();
}

void RespLane::ReceiveOne() {
  Sent& sent = sent_.front();
  RespReply reply;
  // It may have become late behind others.
  const auto now = std::chrono::steady_clock::now();
  if (sent.answered == 0) sent.call.deadline = std::max(sent.call.deadline, now);
  if (!connection_.Receive(sent.call.into, sent.call.deadline, &reply)) return FailSent();
  sent.call.answered(sent.answered, reply);
  --sent_commands_;
  if (++sent.answered < sent.call.lengths.size()) return;
  const RespCall call = std::move(sent.call);
  sent_bytes_ -= call.payload.size();
  sent_.pop_front();
  call.ended(KVT_COLD_OK, {});
}

void RespLane::FailSent() {
  const bool may_do_it = connection_.connected();
  connection_.Drop();
  sent_bytes_ = sent_commands_ = 0;
  for (const Sent& sent : std::exchange(sent_, {})) {
    if (may_do_it && sent.call.left_unsure) sent.call.left_unsure();
    sent.call.ended(KVT_COLD_UNAVAILABLE, connection_.failure());
  }
}

}  // namespace kvtier
