// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/resource_limits.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "base/units.h"

namespace kvtier {
namespace {

constexpr int kExitNoResources = 1;

// As much may lie unused in the heap for the next burst.
constexpr size_t kKeptHeapBytes = 32 * kMiB;

std::string LimitText(int resource, bool in_bytes) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return in_bytes ? FormatByteSize(limit.rlim_cur) : std::to_string(limit.rlim_cur);
}

[[noreturn]] void EndForUncaughtException() {
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::system_error& error) {
      fmt::print(stderr, "kvtierd: a thread cannot be started: {}; {}\n", error.what(),
                 ResourceLimitsText());
      std::_Exit(kExitNoResources);
    } catch (const std::bad_alloc&) {
      // Formatting needs memory.
      std::fputs("kvtierd: memory cannot be had (see ulimit -v and the machine's memory)\n",
                 stderr);
      std::_Exit(kExitNoResources);
    } catch (...) {
    }
  } else if (std::uncaught_exceptions() > 0) {
    // Unwinding met an object that cannot go, such as a thread that a library has started before
    // the next one failed. What was thrown cannot be had here.
    std::fputs("kvtierd: a thread or memory cannot be had (see ulimit -v and ulimit -u)\n", stderr);
    std::_Exit(kExitNoResources);
  }
  std::abort();
}

}  // namespace

std::string ResourceLimitsText() {
  return fmt::format("limits: address space {}, processes and threads {}",
                     LimitText(RLIMIT_AS, /*in_bytes=*/true),
                     LimitText(RLIMIT_NPROC, /*in_bytes=*/false));
}

void ReportUncaughtExceptions() { std::set_terminate(EndForUncaughtException); }

void ReleaseFreedMemory() {
  const struct mallinfo2 heap = ::mallinfo2();
  if (heap.fordblks > kKeptHeapBytes && heap.fordblks > heap.uordblks) ::malloc_trim(0);
}

}  // namespace kvtier
