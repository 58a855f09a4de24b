// SPDX-License-Identifier: Apache-2.0
#include "client/core/own_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace kvtier::client {

std::thread StartOwnThread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace kvtier::client
