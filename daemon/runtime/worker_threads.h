// SPDX-License-Identifier: Apache-2.0
// How many threads a machine suggests for work that all of its cores can share.
#pragma once

#include <cstdint>

namespace kvtier {

inline constexpr uint32_t kMinWorkerThreads = 2;
inline constexpr uint32_t kMaxWorkerThreads = 16;

// All but two of the cores, within the bounds above.
[[nodiscard]] uint32_t WorkerThreadsFor(uint32_t cores);

// `configured`, or where that is 0 what fits the cores that this process may run on. (A quota of
// processor time is not looked at.)
[[nodiscard]] uint32_t WorkerThreads(uint32_t configured);

}  // namespace kvtier
