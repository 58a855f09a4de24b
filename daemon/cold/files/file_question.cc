// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/file_question.h"

#include <algorithm>
#include <utility>

namespace kvtier {
namespace {

using std::chrono::steady_clock;

// A file system in this host's memory or on its disk answers in some microseconds.
constexpr std::chrono::microseconds kSlow{200};
constexpr size_t kMostHelpers = 23;
// A thread then goes on behind the other tenants' calls.
constexpr std::chrono::milliseconds kTurn{2};

}  // namespace

FileQuestion::FileQuestion(std::shared_ptr<ObjectFiles> objects, std::vector<std::string> names,
                           bool each, Time end)
    : objects_(std::move(objects)),
      names_(std::move(names)),
      each_(each),
      end_(end),
      search_(names_.size(), each),
      has_ended_(names_.empty()) {}

void FileQuestion::Ask(const std::function<void(size_t threads)>& call_help,
                       const std::function<bool()>& others_wait) {
  FilePath path = objects_->MakePath();
  Time turn_ends = steady_clock::now() + kTurn;
  while (const std::optional<size_t> position = TakeNext()) {
    const Time begun = steady_clock::now();
    const FileOutcome outcome = objects_->Find(names_[*position], &path);
    const Time now = steady_clock::now();
    if (const size_t threads = Answer(*position, outcome, now - begun > kSlow)) call_help(threads);
    if (now < turn_ends) continue;
    if (others_wait() && IsLeft()) return call_help(1);
    turn_ends = now + kTurn;
  }
}

void FileQuestion::Enter(size_t threads) {
  const std::lock_guard lock(mutex_);
  inside_ += threads;
}

bool FileQuestion::IsLeft() {
  const std::lock_guard lock(mutex_);
  return !HasEnded() && search_.left() > 0;
}

std::optional<size_t> FileQuestion::TakeNext() {
  const std::lock_guard lock(mutex_);
  return HasEnded() ? std::nullopt : search_.TakeNext();
}

bool FileQuestion::HasEnded() {
  if (has_ended_ || steady_clock::now() < end_) return has_ended_;
  if (each_) Fail({.status = KVT_COLD_LATE, .text = "not answered in time"});
  if (is_answered_) has_ended_ = true;
  return has_ended_;
}

size_t FileQuestion::Answer(size_t position, const FileOutcome& outcome, bool is_slow) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return 0;
  auto reply = PrefixSearch::Reply::kUnknown;
  if (outcome.status == KVT_COLD_OK) reply = PrefixSearch::Reply::kThere;
  if (outcome.status == KVT_COLD_ABSENT) reply = PrefixSearch::Reply::kAbsent;
  if (reply == PrefixSearch::Reply::kUnknown && (each_ || position == 0)) Fail(outcome);
  is_answered_ = true;
  if (search_.Answer(position, reply)) has_help_ = false;
  has_ended_ = has_ended_ || search_.has_ended();
  if (has_ended_ || !is_slow || std::exchange(has_help_, true)) return 0;
  return std::min(search_.left(), kMostHelpers);
}

void FileQuestion::Leave(const FileOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  if (outcome.status != KVT_COLD_OK) refusal_ = outcome;
  if (--inside_ > 0 || has_ended_) return;
  if (each_ || !is_answered_) Fail(refusal_);
  has_ended_ = true;
}

void FileQuestion::Fail(const FileOutcome& outcome) {
  if (has_ended_ || outcome.status == KVT_COLD_OK) return;
  failure_ = outcome;
  has_ended_ = true;
}

std::optional<FileOutcome> FileQuestion::TakeEnd() {
  const std::lock_guard lock(mutex_);
  if (!HasEnded() || std::exchange(is_told_, true)) return std::nullopt;
  if (failure_.status != KVT_COLD_OK) return failure_;
  FileOutcome outcome;
  outcome.text = search_.Told();
  return outcome;
}

}  // namespace kvtier
