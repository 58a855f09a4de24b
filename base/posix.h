// SPDX-License-Identifier: Apache-2.0
// Wrappers of the operating system: descriptors, signals, and the errors of system calls.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>
#include <utility>

#include "base/result.h"

namespace kvtier {

// Owns a file descriptor and closes it with itself. Move-only. close() may block (a socket with
// SO_LINGER and unsent data does), so descriptors that clients sent end on a DescriptorCloser's
// thread instead of the event loop.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// "ENOSPC", "EIO"; "E<number>" for one without a name.
[[nodiscard]] inline std::string ErrnoName(int error_number) {
  const char* name = ::strerrorname_np(error_number);
  return name != nullptr ? name : "E" + std::to_string(error_number);
}

// `context` names the attempt and its object; the errno's text is added to it.
[[nodiscard]] inline Error ErrnoError(ErrorCode code, int error_number, std::string context) {
  const char* text = ::strerrordesc_np(error_number);
  if (text != nullptr) context.append(": ").append(text);
  return Error{code, ErrnoName(error_number), std::move(context)};
}

// Leaves the signals of the process to its other threads. A connection of the calling one that
// breaks is then seen by its error, not by SIGPIPE.
inline void BlockAllSignals() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

// The calling thread receives the signal from now on. The program that started this one may have
// had it blocked.
inline void UnblockSignal(int signal) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
}

}  // namespace kvtier
