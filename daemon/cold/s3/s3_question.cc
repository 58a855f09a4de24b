// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/s3/s3_question.h"

namespace kvtier {
namespace {

constexpr size_t kFirstAsked = 4;

}  // namespace

S3Question::S3Question(size_t count, bool each)
    : each_(each), search_(count, each), allowed_(each ? count : kFirstAsked) {}

std::vector<size_t> S3Question::TakeNext() {
  const std::lock_guard lock(mutex_);
  std::vector<size_t> positions;
  for (; allowed_ > 0 && failure_.status == KVT_COLD_OK; --allowed_) {
    const std::optional<size_t> next = search_.TakeNext();
    if (!next) break;
    positions.push_back(*next);
  }
  return positions;
}

void S3Question::Answer(size_t position, const S3Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  auto reply = PrefixSearch::Reply::kUnknown;
  if (outcome.status == KVT_COLD_OK) reply = PrefixSearch::Reply::kThere;
  if (outcome.status == KVT_COLD_ABSENT) reply = PrefixSearch::Reply::kAbsent;
  const bool is_failure = reply == PrefixSearch::Reply::kUnknown && (each_ || position == 0);
  if (is_failure && !search_.has_ended()) failure_ = outcome;
  if (reply == PrefixSearch::Reply::kThere) allowed_ += 2;
  if (search_.Answer(position, reply)) allowed_ = search_.left();
}

bool S3Question::TakeEnd(S3Outcome* outcome) {
  const std::lock_guard lock(mutex_);
  const bool has_failed = failure_.status != KVT_COLD_OK;
  if ((!has_failed && !search_.has_ended()) || is_told_) return false;
  is_told_ = true;
  *outcome = failure_;
  if (!has_failed) outcome->text = search_.Told();
  return true;
}

}  // namespace kvtier
