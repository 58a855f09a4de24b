// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/process.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/machine.h"
#include "base/posix.h"
#include "base/units.h"

namespace kvtier {

std::string_view Version() { return KVTIER_VERSION; }

namespace {

constexpr int kExitNoResources = 1;

// Memory that may lie unused in the heap for the next burst: to return it and fetch it again for
// every burst would cost page faults on the event loop.
constexpr size_t kKeptHeapBytes = 32 * kMiB;

std::string LimitText(int resource, bool in_bytes) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return in_bytes ? FormatByteSize(limit.rlim_cur) : std::to_string(limit.rlim_cur);
}

// _Exit and not exit: destructors of a process in this state could wait for threads for ever.
[[noreturn]] void EndForUncaughtException() {
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      // An error of the program has none: the core file that abort leaves tells more than a text
      // could.
      if (const std::optional<Error> error = ErrorOf(current)) {
        fmt::print(stderr, "kvtierd: {}\n", error->ToString());
        std::_Exit(kExitNoResources);
      }
    } catch (const std::bad_alloc&) {
      // Writing the text needs memory, too.
      std::fputs("kvtierd: memory cannot be had (see ulimit -v and the machine's memory)\n",
                 stderr);
      std::_Exit(kExitNoResources);
    }
  } else if (std::uncaught_exceptions() > 0) {
    // Unwinding met an object that cannot go, such as a thread that a library has started before
    // the next one failed. The exception cannot be had here.
    std::fputs("kvtierd: a thread or memory cannot be had (see ulimit -v and ulimit -u)\n", stderr);
    std::_Exit(kExitNoResources);
  }
  std::abort();
}

Error Exhausted(std::string reason, std::string_view what, const char* told) {
  return {ErrorCode::kResourceExhausted, std::move(reason),
          fmt::format("{} cannot be had: {}; {}", what, told, ResourceLimitsText())};
}

Error ErrorOfCode(const std::error_code& code, const char* told) {
  const std::error_condition condition = code.default_error_condition();
  const bool is_errno = condition.category() == std::generic_category();
  switch (is_errno ? condition.value() : 0) {
    case EAGAIN:
      return Exhausted("no_thread", "a thread", told);
    case EMFILE:
    case ENFILE:
      return Exhausted("no_descriptor", "a descriptor", told);
    case ENOMEM:
      return Exhausted("no_memory", "memory", told);
    default:
      return {ErrorCode::kIoError, is_errno ? ErrnoName(condition.value()) : "system_error", told};
  }
}

}  // namespace

std::optional<Error> ErrorOf(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    return ErrorOfCode(error.code(), error.what());
  } catch (const boost::system::system_error& error) {
    return ErrorOfCode(error.code(), error.what());
  } catch (const std::bad_alloc& error) {
    return Exhausted("no_memory", "memory", error.what());
  } catch (...) {
    return std::nullopt;
  }
}

std::string ResourceLimitsText() {
  return fmt::format("limits: address space {}, processes and threads {}, descriptors {}",
                     LimitText(RLIMIT_AS, /*in_bytes=*/true),
                     LimitText(RLIMIT_NPROC, /*in_bytes=*/false),
                     LimitText(RLIMIT_NOFILE, /*in_bytes=*/false));
}

void ReportUncaughtExceptions() { std::set_terminate(EndForUncaughtException); }

void ReleaseFreedMemory() {
  const struct mallinfo2 heap = ::mallinfo2();
  if (heap.fordblks > kKeptHeapBytes && heap.fordblks > heap.uordblks) ::malloc_trim(0);
}

uint64_t MostDescriptors() {
  constexpr uint64_t kUsual = 1024;
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : kUsual;
}

uint64_t MostMappings() {
  uint64_t most = 65'530;  // the kernel's default
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  return most;
}

// A limit of one byte is too small for any core file, and the only one that the kernel heeds where
// a program takes the dumps. The hard limit stays, so that an operator can allow them again.
void ForbidCoreDumps() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 1);
  (void)::setrlimit(RLIMIT_CORE, &limit);
}

namespace {

// Cores that are left to the event loop and to the engines that compute beside the daemon.
constexpr uint32_t kCoresLeft = 2;

uint32_t UsableCores() {
  cpu_set_t cores;
  // The call fails on a machine that has more cores than the set can name (1024).
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

uint32_t WorkerThreads() {
  const std::optional<uint32_t> allowed = ReadProcessorLimit();
  return WorkerThreadsFor(std::min(UsableCores(), allowed.value_or(UINT32_MAX)));
}

namespace {

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

double ReadCpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime);
}

// The 22nd field of /proc/self/stat is the start in ticks since boot. The second field is the
// program's name, which may itself contain spaces and parentheses: the fields are counted from the
// last closing parenthesis of the line.
double ReadStartTimeSeconds() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  size_t at = name_end + 1;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  const double ticks = std::strtod(line.c_str() + at, nullptr);
  timespec boot{}, now{};
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto booted_at = static_cast<double>(now.tv_sec - boot.tv_sec);
  return booted_at + ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

uint64_t ReadResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

uint64_t CountDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : static_cast<uint64_t>(std::distance(begin(files), end(files)));
}

uint64_t ReadWrittenBytes() {
  std::ifstream file("/proc/self/io");
  std::string key;
  uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "write_bytes:") return value;
  }
  return 0;
}

}  // namespace

ProcessFacts ReadProcessFacts() {
  return {.cpu_seconds = ReadCpuSeconds(),
          .start_time_seconds = ReadStartTimeSeconds(),
          .resident_bytes = ReadResidentBytes(),
          .open_descriptors = CountDescriptors(),
          .written_bytes = ReadWrittenBytes()};
}

}  // namespace kvtier
