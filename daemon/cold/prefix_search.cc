// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/prefix_search.h"

#include <algorithm>
#include <numeric>

namespace kvtier {
namespace {

constexpr size_t kMostSkipped = 15;

// The first steps are short: most prefixes that a store has are, or it has nothing of them.
std::vector<size_t> Steps(size_t count) {
  std::vector<size_t> steps;
  for (size_t step = 0; step < count; step += 1 + std::min(step, kMostSkipped)) {
    steps.push_back(step);
  }
  if (count > 0 && steps.back() + 1 < count) steps.push_back(count - 1);
  return steps;
}

}  // namespace

PrefixSearch::PrefixSearch(size_t count, bool each)
    : each_(each),
      replies_(count),
      steps_(each ? std::vector<size_t>(count) : Steps(count)),
      has_ended_(count == 0) {
  if (each) std::iota(steps_.begin(), steps_.end(), size_t{0});
}

std::optional<size_t> PrefixSearch::TakeNext() {
  if (left() == 0) return std::nullopt;
  return steps_[next_++];
}

bool PrefixSearch::Answer(size_t position, Reply reply) {
  if (has_ended_) return false;
  replies_[position] = reply;
  while (answered_ < steps_.size() && replies_[steps_[answered_]]) {
    const size_t step = steps_[answered_];
    if (!each_ && replies_[step] == Reply::kAbsent) return NarrowTo(step);
    has_ended_ = !each_ && replies_[step] == Reply::kUnknown;
    if (has_ended_) return false;
    ++answered_;
    known_ = step + 1;
  }
  has_ended_ = answered_ == steps_.size();
  return false;
}

// Objects behind an absent one are of no use, whatever the store says of them.
bool PrefixSearch::NarrowTo(size_t absent) {
  steps_.resize(absent - known_);
  std::iota(steps_.begin(), steps_.end(), known_);
  next_ = answered_ = 0;
  has_ended_ = steps_.empty();
  return !has_ended_;
}

std::string PrefixSearch::Told() const {
  std::string told(replies_.size(), '\0');
  for (size_t i = 0; i < known_; ++i) told[i] = each_ && replies_[i] != Reply::kThere ? 0 : 1;
  return told;
}

}  // namespace kvtier
