// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_question.h"

#include <algorithm>

namespace kvtier {
namespace {

constexpr size_t kFirstAsked = 4;

}  // namespace

S3Question::S3Question(size_t count, bool each)
    : each_(each),
      states_(count, State::kOpen),
      allowed_(each ? count : std::min(count, kFirstAsked)),
      has_ended_(count == 0) {}

std::vector<size_t> S3Question::TakeNext() {
  const std::lock_guard lock(mutex_);
  std::vector<size_t> positions;
  while (!has_ended_ && next_ < allowed_) positions.push_back(next_++);
  return positions;
}

void S3Question::Answer(size_t position, const S3Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return;
  State& state = states_[position];
  state = State::kFailed;
  if (outcome.status == KVT_COLD_OK) state = State::kThere;
  if (outcome.status == KVT_COLD_ABSENT) state = State::kAbsent;
  if (state == State::kFailed && (each_ || position == 0)) {
    failure_ = outcome;
    has_ended_ = true;
    return;
  }
  while (known_ < states_.size() && states_[known_] != State::kOpen) {
    if (!each_ && states_[known_] != State::kThere) {
      has_ended_ = true;
      return;
    }
    ++known_;
    allowed_ = std::min(allowed_ + 2, states_.size());
  }
  has_ended_ = known_ == states_.size();
}

bool S3Question::TakeEnd(S3Outcome* outcome) {
  const std::lock_guard lock(mutex_);
  if (!has_ended_ || is_told_) return false;
  is_told_ = true;
  *outcome = failure_;
  if (failure_.status != KVT_COLD_OK) return true;
  outcome->text.assign(states_.size(), '\0');
  const size_t end = each_ ? states_.size() : known_;
  for (size_t i = 0; i < end; ++i) outcome->text[i] = states_[i] == State::kThere ? 1 : 0;
  return true;
}

}  // namespace kvtier
