// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/client_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/result.h"

namespace kvtier {

ClientProcess::ClientProcess(const Work& work) {
  int start[2];
  int answer[2];
  KVT_CHECK(::pipe2(start, O_CLOEXEC) == 0 && ::pipe2(answer, O_CLOEXEC) == 0);
  const UniqueFd started(start[0]);
  const UniqueFd answering(answer[1]);
  start_ = UniqueFd(start[1]);
  answer_ = UniqueFd(answer[0]);
  pid_ = ::fork();
  KVT_CHECK(pid_ >= 0);
  if (pid_ > 0) return;

  start_.Reset();
  char path[256];
  const ssize_t length = ::read(started.get(), path, sizeof(path));
  if (length <= 0) ::_exit(1);
  work(std::string(path, static_cast<size_t>(length)), [&](int value) {
    (void)!::write(answering.get(), &value, sizeof(value));
    while (true) ::pause();
  });
  ::_exit(1);
}

int ClientProcess::Start(const std::string& socket) {
  int value = -1;
  if (::write(start_.get(), socket.data(), socket.size()) < 0) return -1;
  return ::read(answer_.get(), &value, sizeof(value)) == ssize_t{sizeof(value)} ? value : -1;
}

void ClientProcess::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace kvtier
