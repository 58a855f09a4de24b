// SPDX-License-Identifier: Apache-2.0
// A client of a daemon under test in a process of its own, which lives until it is killed.
//
// It must be made before the daemon's threads are: a process that is forked while other threads run
// keeps whatever locks they held, of the memory allocator, too, and may wait for them for ever.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/posix.h"

namespace kvtier {

class ClientProcess {
 public:
  // Gives the test an answer and sleeps until the process is killed. It does not return.
  using AnswerAndSleep = std::function<void(int answer)>;
  // The process's work, once it is told the daemon's socket. It ends with its answer.
  using Work = std::function<void(const std::string& socket, const AnswerAndSleep& answer)>;

  explicit ClientProcess(const Work& work);
  ~ClientProcess() { Kill(); }
  ClientProcess(const ClientProcess&) = delete;
  ClientProcess& operator=(const ClientProcess&) = delete;

  // Lets the work begin and waits for its answer; -1 if the process ended without one.
  [[nodiscard]] int Start(const std::string& socket);
  void Kill();

 private:
  pid_t pid_ = -1;
  UniqueFd start_;
  UniqueFd answer_;
};

}  // namespace kvtier
