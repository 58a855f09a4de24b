// SPDX-License-Identifier: Apache-2.0
#include "gpu/guarded_copy.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstddef>

#include "base/result.h"
#include "gpu/copy_threads.h"

namespace kvtier {
namespace {

struct Guard {
  sigjmp_buf out{};
  std::span<const std::byte> mapping;
};

// A signal's handler has no argument that could lead to these: the copy that the thread is in, and
// the disposition that the process had before.
constinit thread_local Guard* volatile guard = nullptr;
constinit struct sigaction former {};

bool Guarded(const siginfo_t& fault) {
  const Guard* const here = guard;
  if (here == nullptr || fault.si_code <= 0) return false;  // or sent by a process
  const auto* const address = static_cast<const std::byte*>(fault.si_addr);
  return address >= here->mapping.data() && address < here->mapping.data() + here->mapping.size();
}

// Leaves the copy, with the signals blocked that were blocked there. A fault that is not the copy's
// meets the former disposition when the access is repeated.
void OnBusError(int signal, siginfo_t* fault, void* context) {
  if (Guarded(*fault)) {
    const sigset_t& blocked = static_cast<const ucontext_t*>(context)->uc_sigmask;
    (void)::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
    ::siglongjmp(guard->out, 1);
  }
  (void)::sigaction(SIGBUS, &former, nullptr);
  // A signal that was sent, or that reports damaged memory before any access, repeats no access.
  if (fault->si_code <= 0 || fault->si_code == BUS_MCEERR_AO) (void)::raise(signal);
}

bool InstallHandler() {
  struct sigaction action {};
  action.sa_sigaction = &OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return ::sigaction(SIGBUS, &action, &former) == 0;
}

}  // namespace

bool GuardedCopy(void* to, const void* from, size_t bytes, std::span<const std::byte> mapping) {
  static const bool installed = InstallHandler();
  KVT_CHECK(installed);
  Guard here{.mapping = mapping};
  if (::sigsetjmp(here.out, 0) != 0) {
    guard = nullptr;
    return false;
  }
  guard = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  FastCopy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guard = nullptr;
  return true;
}

}  // namespace kvtier
