// SPDX-License-Identifier: Apache-2.0
// Only in builds with KVTIER_STATIC: arc4random(), which the archive of libstdc++ asks for and
// glibc has from 2.36 on. With it here, the programs run from glibc 2.34 on. Any thread.
#include <sys/random.h>

#include <cstdint>

// Hidden, so that no other library of a process can meet it. Small requests are never cut short;
// the loop is for signals.
extern "C" __attribute__((visibility("hidden"))) uint32_t arc4random() noexcept {
  uint32_t value = 0;
  while (::getrandom(&value, sizeof(value), /*flags=*/0) != sizeof(value)) {
  }
  return value;
}
