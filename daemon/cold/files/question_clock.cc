// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/question_clock.h"

#include <optional>
#include <system_error>
#include <utility>

#include "base/posix.h"

namespace kvtier {

// Without a thread, questions end as soon as a thread that asks comes back. The one that waits is
// woken for an earlier end alone.
void QuestionClock::Add(const std::shared_ptr<FileQuestion>& question, Tell tell) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return;
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error&) {
      return;
    }
  }
  DropAnswered();
  watched_.emplace(question->end(), Watched{.question = question, .tell = std::move(tell)});
  if (question->end() < wakes_at_) changed_.notify_one();
}

void QuestionClock::DropAnswered() {
  while (!watched_.empty() && watched_.begin()->second.question.expired()) {
    watched_.erase(watched_.begin());
  }
}

void QuestionClock::Run() {
  BlockAllSignals();
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    DropAnswered();
    wakes_at_ = watched_.empty() ? FileQuestion::Time::max() : watched_.begin()->first;
    if (watched_.empty()) {
      changed_.wait(lock);
    } else if (wakes_at_ <= std::chrono::steady_clock::now()) {
      EndFirst(&lock);
    } else {
      changed_.wait_until(lock, FileQuestion::Time(wakes_at_));
    }
  }
}

void QuestionClock::EndFirst(std::unique_lock<std::mutex>* lock) {
  const Watched first = std::move(watched_.extract(watched_.begin()).mapped());
  lock->unlock();
  if (const std::shared_ptr<FileQuestion> question = first.question.lock()) {
    if (const std::optional<FileOutcome> end = question->TakeEnd()) first.tell(*end, false);
  }
  lock->lock();
}

void QuestionClock::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace kvtier
