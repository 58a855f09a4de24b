// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/resp/resp_lane.h"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace kvtier {
namespace {

// Sent together. Replies come while the rest is still being sent, so more would only keep the first
// waiting.
constexpr size_t kMostCalls = 64;
constexpr size_t kMostPayloadBytes = size_t{4} << 20;

// Signals are the daemon's. A connection that breaks is seen by its error, not by SIGPIPE.
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

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

RespLane::RespLane(const RespEndpoint& endpoint)
    : connection_(endpoint), thread_([this] { Work(); }) {}

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
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      waiting_.push_back(std::move(call));
      wake_.notify_one();
      return;
    }
  }
  call.ended(false);
}

std::vector<RespCall> RespLane::Take() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  std::vector<RespCall> calls;
  size_t payload_bytes = 0;
  while (!waiting_.empty() && calls.size() < kMostCalls && payload_bytes < kMostPayloadBytes) {
    payload_bytes += waiting_.front().payload.size();
    calls.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return calls;
}

void RespLane::Work() {
  BlockSignals();
  for (std::vector<RespCall> calls = Take(); !calls.empty(); calls = Take()) {
    Send(std::move(calls));
  }
}

// A call that was given up is not sent: a server that was away for a while is not to be busy
// with questions of that time.
void RespLane::Send(std::vector<RespCall> calls) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<RespCommand> commands;
  std::vector<std::pair<size_t, size_t>> origins;  // of each command: call, and position in it
  std::vector<size_t> missing;                     // replies, by call
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool late = calls[i].deadline <= now;
    missing.push_back(late ? 1 : calls[i].lengths.size());
    if (late) continue;
    for (size_t j = 0; j < calls[i].lengths.size(); ++j) origins.emplace_back(i, j);
    AddCommands(calls[i], &commands);
  }
  const auto answered = [&](size_t position, const RespReply& reply) {
    const auto [call, command] = origins[position];
    calls[call].answered(command, reply);
    if (--missing[call] == 0) calls[call].ended(true);
  };
  if (!commands.empty()) (void)connection_.Run(commands, answered);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (missing[i] > 0) calls[i].ended(false);
  }
}

}  // namespace kvtier
