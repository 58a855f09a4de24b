// SPDX-License-Identifier: Apache-2.0
// Ends questions in time while the threads that ask wait for the file system.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "daemon/cold/files/file_question.h"

namespace kvtier {

// Any thread. Its own makes no call of a file system, so that it is joined.
class QuestionClock {
 public:
  using Tell = std::function<void(const FileOutcome&, bool more)>;

  QuestionClock() = default;
  ~QuestionClock() { Stop(); }
  QuestionClock(const QuestionClock&) = delete;
  QuestionClock& operator=(const QuestionClock&) = delete;

  // At the question's end, if it lives until then, takes its answer and calls `tell` with it, on
  // the clock's thread.
  void Add(const std::shared_ptr<FileQuestion>& question, Tell tell);
  // Nothing is told any more.
  void Stop();

 private:
  struct Watched {
    std::weak_ptr<FileQuestion> question;
    Tell tell;
  };
  void Run();
  // The lock is not held in between.
  void EndFirst(std::unique_lock<std::mutex>* lock);
  // Forgets the first questions that were answered: most are long before their ends.
  void DropAnswered();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::multimap<FileQuestion::Time, Watched> watched_;       // by their ends
  FileQuestion::Time wakes_at_ = FileQuestion::Time::max();  // while the thread waits
  bool is_stopping_ = false;
  std::thread thread_;  // from the first question on
};

}  // namespace kvtier
