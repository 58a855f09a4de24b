// SPDX-License-Identifier: Apache-2.0
#include "tiers/cold/guarded_store.h"

#include <optional>
#include <utility>

namespace kvtier {
namespace {

constexpr int64_t kProbeTimeoutMs = 1000;
constexpr const char* kProbe = "kvtier/probe";

// Whether the store answers, if only to refuse an object because it is full. Nothing if a call
// says nothing of that, as it was not sent, because too much is under way.
template <typename Answer>
std::optional<bool> Answers(const Answer& answer) {
  if (answer) return true;
  const ErrorCode code = answer.error().code;
  if (code == ErrorCode::kResourceExhausted || answer.error().reason == kColdCallUnsent) {
    return std::nullopt;
  }
  return code != ErrorCode::kTimeout && code != ErrorCode::kUnavailable;
}

}  // namespace

bool GuardedStore::Available() {
  if (breaker_.TakeProbe()) {
    store_.Exists({kProbe}, ColdAsk::kPrefix, kProbeTimeoutMs,
                  gate_.WhileOpen([this](const Result<std::vector<bool>>& answer) {
                    breaker_.ProbeEnded(Answers(answer).value_or(false));
                    TellIfChanged(answer ? Status() : tl::unexpected(answer.error()));
                  }));
  }
  return breaker_.Passes();
}

// A put is too dear to be a probe. A store that deletes but takes no objects is sent a few after
// each, ever more seldom.
bool GuardedStore::TakesWrites() {
  if (!Available()) return false;
  if (writes_.TakeProbe()) {
    store_.Delete({kProbe}, kProbeTimeoutMs, gate_.WhileOpen([this](const Status& status) {
      writes_.ProbeEnded(Answers(status).value_or(false));
    }));
  }
  return writes_.Passes();
}

// A probe that fails while the store is away is no news.
void GuardedStore::TellIfChanged(const Status& last) {
  if (breaker_.Passes() == !away_told_) return;
  away_told_ = !breaker_.Passes();
  if (on_change_) on_change_(away_told_ ? last : Status());
}

template <typename Answer>
std::function<void(Answer)> GuardedStore::Watch(Operation operation,
                                                std::function<void(Answer)> done) {
  uint64_t* const answered = &answered_[static_cast<size_t>(operation)];
  const bool writes = operation == Operation::kPut || operation == Operation::kDelete;
  CircuitBreaker* const breaker = writes ? &writes_ : &breaker_;
  const uint64_t before = *answered;
  return gate_.WhileOpen([this, breaker, answered, before, done = std::move(done)](Answer answer) {
    std::optional<bool> answers = Answers(answer);
    *answered += answers == true ? 1 : 0;
    // Others like it were answered meanwhile: the call stood in a queue, maybe one client's.
    const bool is_late = !answer && answer.error().code == ErrorCode::kTimeout;
    if (is_late && *answered != before) answers.reset();
    if (answers) breaker->RequestEnded(*answers);
    if (answers == false) {
      lost_calls_ += answer.error().code == ErrorCode::kUnavailable ? 1 : 0;
      TellIfChanged(tl::unexpected(answer.error()));
    }
    done(std::move(answer));
  });
}

template <typename Answer>
bool GuardedStore::Refuse(bool passes, const std::function<void(Answer)>& done) {
  if (passes) return false;
  loop_.Post(gate_.WhileOpen(
      [done] { done(MakeError(ErrorCode::kUnavailable, std::string(kColdStoreAway))); }));
  return true;
}

void GuardedStore::Exists(std::vector<std::string> names, ColdAsk ask, int64_t timeout_ms,
                          ExistsDone done) {
  if (Refuse(Available(), done)) return;
  store_.Exists(std::move(names), ask, timeout_ms, Watch(Operation::kExists, std::move(done)));
}

void GuardedStore::Get(std::string name, uint64_t bytes, int64_t timeout_ms, GetDone done) {
  if (Refuse(Available(), done)) return;
  store_.Get(std::move(name), bytes, timeout_ms, Watch(Operation::kGet, std::move(done)));
}

void GuardedStore::Put(std::string name, ColdBytes bytes, ColdPut how, int64_t timeout_ms,
                       Done done) {
  if (Refuse(TakesWrites(), done)) return;
  store_.Put(std::move(name), std::move(bytes), how, timeout_ms,
             Watch(Operation::kPut, std::move(done)));
}

void GuardedStore::Delete(std::vector<std::string> names, int64_t timeout_ms, Done done) {
  if (Refuse(Available(), done)) return;
  store_.Delete(std::move(names), timeout_ms, Watch(Operation::kDelete, std::move(done)));
}

void GuardedStore::DeleteSome(std::string prefix, uint64_t cursor, int64_t timeout_ms,
                              DeletedDone done) {
  if (Refuse(Available(), done)) return;
  store_.DeleteSome(std::move(prefix), cursor, timeout_ms,
                    Watch(Operation::kDelete, std::move(done)));
}

}  // namespace kvtier
