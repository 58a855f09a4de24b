// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/worker_threads.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace kvtier {
namespace {

// Left to the event loop and to whoever computes beside the daemon.
constexpr uint32_t kCoresLeft = 2;

uint32_t UsableCores() {
  cpu_set_t cores;
  // A machine may have more cores than the set has room for.
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) {
    return std::thread::hardware_concurrency();
  }
  return static_cast<uint32_t>(CPU_COUNT(&cores));
}

}  // namespace

uint32_t WorkerThreadsFor(uint32_t cores) {
  const uint32_t spare = cores > kCoresLeft ? cores - kCoresLeft : 0;
  return std::clamp(spare, kMinWorkerThreads, kMaxWorkerThreads);
}

uint32_t WorkerThreads(uint32_t configured) {
  return configured > 0 ? configured : WorkerThreadsFor(UsableCores());
}

}  // namespace kvtier
