// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_lane.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <utility>

#include "base/posix.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFirstHold{50};
constexpr milliseconds kLongestHold{2000};
constexpr milliseconds kNoHurry{60'000};
constexpr int kMostTries = 4;

void EndUnavailable(const S3Call& call, std::string why) {
  call.ended({.status = KVT_COLD_UNAVAILABLE, .text = std::move(why), .may_come = call.may_come});
}

}  // namespace

S3Lane::S3Lane(const S3Endpoint* endpoint, S3CredentialSource* credentials, size_t most)
    : endpoint_(*endpoint),
      source_(*credentials),
      most_(most),
      loop_(static_cast<long>(most)),
      signer_(endpoint->host, endpoint->region),
      thread_([this] { Work(); }) {}

S3Lane::~S3Lane() {
  Interrupt();
  thread_.join();
}

void S3Lane::Interrupt() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  loop_.Wake();
}

// The thread takes all that was added, so the first of them wakes it.
void S3Lane::Add(S3Call call) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      is_first = added_.empty();
      added_.push_back(std::move(call));
    }
  }
  if (call.ended) return EndUnavailable(call, "the store is being closed");
  if (is_first) loop_.Wake();
}

bool S3Lane::TakeCalls() {
  const std::lock_guard lock(mutex_);
  for (S3Call& call : added_) queue_.Add(std::move(call));
  added_.clear();
  return !stopping_;
}

void S3Lane::Work() {
  BlockAllSignals();
  // Without a loop all calls end at once.
  if (!loop_.is_good()) Interrupt();
  while (TakeCalls()) {
    StartCalls();
    loop_.Wait(TimeToWait());
    while (const std::optional<CurlLoop::Ended> ended = loop_.TakeEnded()) EndOne(*ended);
  }
  FailAll();
}

milliseconds S3Lane::TimeToWait() const {
  const Time now = steady_clock::now();
  if (queue_.empty() || held_until_ <= now) return kNoHurry;
  return std::chrono::ceil<milliseconds>(std::min(held_until_, queue_.FirstDeadline()) - now);
}

// A call that was given up is not sent: a server that was away for a while is not to be busy with
// questions of that time.
void S3Lane::StartCalls() {
  const Time now = steady_clock::now();
  const auto end_late = [](const S3Call& call) {
    const int status = call.tries > 0 ? KVT_COLD_LATE : KVT_COLD_UNSENT;
    call.ended({.status = status, .text = "not sent in time", .may_come = call.may_come});
  };
  for (const S3Call& call : queue_.TakeLate(now)) end_late(call);
  while (!queue_.empty()) {
    if (queue_.first().deadline <= now) {
      end_late(queue_.TakeFirst());
      continue;
    }
    const bool waits = now < held_until_ || running_.size() >= most_ ||
                       (queue_.first().is_barrier && !running_.empty()) ||
                       (!running_.empty() && running_.begin()->second->call().is_barrier);
    if (waits) return;
    Start(queue_.TakeFirst());
  }
}

void S3Lane::Start(S3Call call) {
  const std::optional<S3Credentials> credentials = source_.Current();
  if (!credentials) return EndUnavailable(call, source_.Missing());
  std::unique_ptr<S3Transfer> transfer;
  if (idle_.empty()) {
    transfer = std::make_unique<S3Transfer>(&endpoint_);
  } else {
    transfer = std::move(idle_.back());
    idle_.pop_back();
  }
  if (transfer->handle() == nullptr) return EndUnavailable(call, "out of memory");
  ++call.tries;
  call.credentials = *credentials;
  call.if_absent = call.if_absent && knows_conditions_;
  const S3Signed request{.method = S3Transfer::MethodOf(call),
                         .path = call.path,
                         .query = call.query,
                         .has_payload = call.verb == S3Verb::kPut};
  std::vector<std::string> headers = signer_.Sign(request, *credentials, std::time(nullptr));
  if (call.if_absent) headers.emplace_back("if-none-match: *");
  transfer->Begin(std::move(call), headers);
  void* const handle = transfer->handle();
  running_[handle] = std::move(transfer);
  loop_.Add(handle);
}

void S3Lane::EndOne(const CurlLoop::Ended& ended) {
  auto node = running_.extract(ended.handle);
  if (node.empty()) return;
  S3Verdict verdict = node.mapped()->End(ended.code);
  S3Call call = std::move(node.mapped()->call());
  idle_.push_back(std::move(node.mapped()));
  if (TryAgain(&call, verdict.next)) return;
  // The same put succeeds without its condition.
  if (call.was_refused && verdict.outcome.status == KVT_COLD_OK) knows_conditions_ = false;
  call.ended(std::move(verdict.outcome));
}

// The store's wish counts for all calls of the lane, and the longer the more often it says so.
bool S3Lane::TryAgain(S3Call* call, S3Next next) {
  if (next == S3Next::kEnd) {
    hold_ = milliseconds(0);
    return false;
  }
  bool again = call->tries < kMostTries;
  if (next == S3Next::kLater) {
    const Time now = steady_clock::now();
    if (held_until_ <= now) {
      hold_ = std::clamp(2 * hold_, kFirstHold, kLongestHold);
      held_until_ = now + hold_;
    }
    again = again && held_until_ < call->deadline;
  } else if (next == S3Next::kOtherCredentials) {
    again = again && source_.Current() != call->credentials;
  } else if (next == S3Next::kPlainly) {
    call->was_refused = true;
    call->if_absent = false;
  } else {
    again = again && !std::exchange(call->asks_why, true);
  }
  if (again) queue_.AddFirst(std::move(*call));
  return again;
}

void S3Lane::FailAll() {
  for (auto& [handle, transfer] : running_) {
    loop_.Remove(handle);
    EndUnavailable(transfer->call(), "the store is being closed");
  }
  running_.clear();
  while (!queue_.empty()) EndUnavailable(queue_.TakeFirst(), "not sent");
}

}  // namespace kvtier
