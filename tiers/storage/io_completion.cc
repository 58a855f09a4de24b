// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/io_completion.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/units.h"

namespace kvtier {
namespace {

// One task checks no more than this before the loop hears of it: the copy to the pool begins while
// the rest is checked. At 10 GB/s it takes 0.4 ms.
constexpr uint64_t kMaxShareBytes = 4 * kMiB;
// Less is not worth the wake-up of another thread.
constexpr uint64_t kMinShareBytes = 256 * kKiB;

}  // namespace

IoCompletionQueue::IoCompletionQueue(EventQueue* loop, Executor* executor)
    : loop_(loop), executor_(executor) {}

IoCompletionQueue::~IoCompletionQueue() {
  std::unique_lock lock(mutex_);
  all_checked_.wait(lock, [this] { return tasks_ == 0; });
}

void IoCompletionQueue::Deliver(std::vector<IoCompletion> batch) {
  const auto to_check = std::stable_partition(
      batch.begin(), batch.end(),
      [](const IoCompletion& completion) { return !completion.status || !completion.check; });
  std::vector<IoCompletion> unchecked(std::make_move_iterator(to_check),
                                      std::make_move_iterator(batch.end()));
  batch.erase(to_check, batch.end());
  Post(std::move(batch));
  if (unchecked.empty()) return;
  if (executor_ == nullptr) {
    Check(&unchecked);
    return Post(std::move(unchecked));
  }
  int more_tasks = 0;
  {
    const std::lock_guard lock(mutex_);
    for (IoCompletion& completion : unchecked) {
      unchecked_bytes_ += completion.bytes;
      unchecked_.push_back(std::move(completion));
    }
    const auto shares = (unchecked_bytes_ + kMinShareBytes - 1) / kMinShareBytes;
    const int wanted = static_cast<int>(std::min<uint64_t>(shares, executor_->threads()));
    more_tasks = std::max(wanted - tasks_, 0);
    tasks_ += more_tasks;
  }
  for (; more_tasks > 0; --more_tasks) {
    executor_->Run([this] { CheckSome(); }, nullptr);
  }
}

std::vector<IoCompletion> IoCompletionQueue::TakeShare() {
  const uint64_t equal = unchecked_bytes_ / static_cast<uint64_t>(executor_->threads());
  const uint64_t most = std::clamp(equal, kMinShareBytes, kMaxShareBytes);
  std::vector<IoCompletion> share;
  for (uint64_t bytes = 0; bytes < most && !unchecked_.empty();) {
    bytes += unchecked_.front().bytes;
    unchecked_bytes_ -= unchecked_.front().bytes;
    share.push_back(std::move(unchecked_.front()));
    unchecked_.pop_front();
  }
  return share;
}

void IoCompletionQueue::CheckSome() {
  std::vector<IoCompletion> share;
  {
    const std::lock_guard lock(mutex_);
    share = TakeShare();
  }
  Check(&share);
  Post(std::move(share));
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    more = !unchecked_.empty();
    // The lock is held while it is said: the destructor may run as soon as it can be taken.
    if (!more && --tasks_ == 0) all_checked_.notify_all();
  }
  // Behind the executor's other work, such as the checksums of offloads.
  if (more) executor_->Run([this] { CheckSome(); }, nullptr);
}

void IoCompletionQueue::Check(std::vector<IoCompletion>* batch) {
  for (const IoCompletion& completion : *batch) completion.check();
}

void IoCompletionQueue::Post(std::vector<IoCompletion> batch) {
  if (batch.empty()) return;
  {
    const std::lock_guard lock(gathered_->mutex);
    auto& completions = gathered_->completions;
    const bool event_posted = !completions.empty();
    std::move(batch.begin(), batch.end(), std::back_inserter(completions));
    if (event_posted) return;
  }
  loop_->Post([gathered = gathered_] {
    std::vector<IoCompletion> completions;
    {
      const std::lock_guard lock(gathered->mutex);
      completions.swap(gathered->completions);
    }
    for (IoCompletion& completion : completions) completion.done(std::move(completion.status));
  });
}

}  // namespace kvtier
