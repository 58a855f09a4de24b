// SPDX-License-Identifier: Apache-2.0
// A process that does nothing until it is killed, and the kernel's knowledge of it.
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/posix.h"
#include "daemon/net/peer.h"

namespace kvtier {

class Bystander {
 public:
  Bystander() : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) ::pause();
    }
  }
  ~Bystander() { Kill(); }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  // As the kernel would tell of it at the other end of a socket.
  [[nodiscard]] Peer peer() const { return PeerOf(pid_); }
  [[nodiscard]] static Peer PeerOf(pid_t pid) {
    return {.pid = pid, .pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))};
  }
  // As of a process of another pid namespace, which has no number here.
  [[nodiscard]] Peer foreign_peer() const {
    Peer peer = PeerOf(pid_);
    peer.pid = 0;
    return peer;
  }
  // Since Linux 6.9.
  [[nodiscard]] bool CanBeToldWithoutANumber() const {
    return IsSameProcess(foreign_peer(), foreign_peer());
  }
  void Kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
};

// The number of pidfds that the test's process has open.
inline size_t OpenPidfds() {
  size_t open = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), error);
    if (!error && target.string().find("pidfd") != std::string::npos) ++open;
  }
  return open;
}

}  // namespace kvtier
