// SPDX-License-Identifier: Apache-2.0
#include "client/core/own_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace kvtier::client {
namespace {

// On the calling thread, and all that it starts.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Result<std::thread> StartOwnThread(const char* name, std::function<void()> body) {
  const SignalsBlocked blocked;
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kResourceExhausted, "no_thread", error.what());
  }
}

Result<UniqueFd> OpenEvent(int flags) {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | flags));
  if (event.valid()) return event;
  return MakeError(ErrorCode::kResourceExhausted, "no_descriptor", std::strerror(errno));
}

void SignalEvent(int event) {
  const uint64_t one = 1;
  (void)!::write(event, &one, sizeof(one));
}

}  // namespace kvtier::client
