// SPDX-License-Identifier: Apache-2.0
// The status of a daemon under measurement.
#pragma once

#include <sys/types.h>

#include <boost/json/value.hpp>
#include <string>

#include "base/result.h"

namespace kvtier {

// The document that `kvtierctl status --json` shows; read it with JsonView. Include from .cc files
// only. Errors: those of asking; kCorrupt "bad_status".
[[nodiscard]] Result<boost::json::value> AskStatus(const std::string& admin_socket);

// Waits until a daemon's host memory is ready, for a minute at most: while it grows, blocks that it
// would have room for are dropped. Errors: as AskStatus.
[[nodiscard]] Status WaitForHostMemory(const std::string& admin_socket);

// Processor time that a daemon has taken since it started, in the kernel and outside. Threads that
// have ended are not counted, of which a daemon at work has none. Zeros without a process.
struct DaemonCpu {
  double all_seconds = 0;   // all its threads together
  double loop_seconds = 0;  // the event loop's thread, which is the process's first

  DaemonCpu operator-(const DaemonCpu& before) const {
    return {all_seconds - before.all_seconds, loop_seconds - before.loop_seconds};
  }
};
[[nodiscard]] DaemonCpu CpuOf(pid_t pid);

}  // namespace kvtier
