// SPDX-License-Identifier: Apache-2.0
// The daemon's process: its version, the kernel's facts about it, which threads and how much memory
// it may have, and how it ends when it cannot have them.
//
// All functions here are free of state. Functions that read facts never fail: a fact that the
// kernel does not tell is left at 0 or named "unknown", because a metric that is missing must not
// stop a daemon.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvtier {

// The version of the build, as packages and `--version` show it. A static text.
[[nodiscard]] std::string_view Version();

// "limits: address space 128.0 MiB, processes and threads 512, descriptors 1024", with "unlimited"
// where so. For error messages about threads, memory and descriptors that cannot be had.
[[nodiscard]] std::string ResourceLimitsText();

// The error of the system that `thrown`, of the standard library or of Boost, stands for:
// kResourceExhausted "no_thread", "no_descriptor" or "no_memory", with the limits in the context,
// or kIoError with the errno's name. Nothing for an exception that is no error of the system.
[[nodiscard]] std::optional<Error> ErrorOf(const std::exception_ptr& thrown);

// From now on, an uncaught exception that says that a thread, memory or a descriptor cannot be had
// ends the process with a line on standard error that names it and the limits, and with exit code
// 1, instead of an abort: threads are started in many places, and none can go on without.
// Programmers' errors still abort. To be called once, before the first thread is started.
void ReportUncaughtExceptions();

// Returns memory that was freed to the system, if the heap keeps far more than is in use: floods of
// large requests leave it behind. Cheap when there is nothing to do; any thread.
void ReleaseFreedMemory();

// No core file of this process is written from now on, and none is given to a program that the
// system has for them, because it would hold keys: not only the memory that is left out of dumps
// has them, the heap has what ciphers make of them.
void ForbidCoreDumps();

// How many descriptors this process may have open, once it has raised its limit, and mappings of
// memory.
[[nodiscard]] uint64_t MostDescriptors();
[[nodiscard]] uint64_t MostMappings();

// Two threads let a checksum go on beside another slow job. More than sixteen do not pay: memory
// bandwidth limits checksums and page touching before that.
inline constexpr uint32_t kMinWorkerThreads = 2;
inline constexpr uint32_t kMaxWorkerThreads = 16;

// All but two of the cores, within the bounds above.
[[nodiscard]] uint32_t WorkerThreadsFor(uint32_t cores);

// As many as fit the cores that this process may run on, or the processor time that a control group
// (CPUQuota=, a container's limit) allows it.
[[nodiscard]] uint32_t WorkerThreads();

// The kernel's facts about this process. All counts are since its start.
struct ProcessFacts {
  double cpu_seconds = 0;
  double start_time_seconds = 0;  // Unix time
  uint64_t resident_bytes = 0;
  uint64_t open_descriptors = 0;
  // The bytes that this process has caused to be written to storage: blocks, headers and the index
  // with its compactions. 0 where the kernel does not tell.
  uint64_t written_bytes = 0;
};

// Reads /proc; what cannot be read stays 0. Any thread.
[[nodiscard]] ProcessFacts ReadProcessFacts();

}  // namespace kvtier
