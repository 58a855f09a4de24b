// SPDX-License-Identifier: Apache-2.0
// What to do, and to say, when the process runs into the limits that it was started with.
#pragma once

#include <string>

namespace kvtier {

// "limits: address space 128.0 MiB, processes and threads 512", with "unlimited" where so. For
// error messages about threads and memory that cannot be had.
[[nodiscard]] std::string ResourceLimitsText();

// From now on, an exception that is caught by no one ends the process with a line on standard error
// that names it and the limits, and with exit code 1, instead of an abort: threads are started in
// many places, and none can go on without. Programmers' errors still abort.
void ReportUncaughtExceptions();

// Returns memory that was freed to the system, if the heap keeps far more than is in use: floods of
// large requests leave it behind. Cheap when there is nothing to do; any thread.
void ReleaseFreedMemory();

}  // namespace kvtier
