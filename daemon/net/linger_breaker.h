// SPDX-License-Identifier: Apache-2.0
// Ends the waits that a socket's owner can make of a close: a TCP socket with SO_LINGER and unsent
// data holds up the thread that drops its last reference, for as long as its owner has set. Such
// calls are close(), and recvmsg() that discards a descriptor, with whatever flags.
#pragma once

#include <ctime>

namespace kvtier {

// While it lives, the thread that made it gets a signal (SIGURG, with a handler that does nothing)
// again and again. The kernel ends such waits at a signal, all that one call makes at the same one.
// System calls that are not for closing are restarted. Where the kernel gives no timer it does
// nothing. The same thread must destroy it.
class LingerBreaker {
 public:
  LingerBreaker();
  ~LingerBreaker();
  LingerBreaker(const LingerBreaker&) = delete;
  LingerBreaker& operator=(const LingerBreaker&) = delete;

 private:
  timer_t timer_{};
  bool armed_ = false;
};

}  // namespace kvtier
