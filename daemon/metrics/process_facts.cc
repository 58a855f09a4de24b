// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/process_facts.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace kvtier {
namespace {

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

double ReadCpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime);
}

// The 22nd field of /proc/self/stat, in ticks since boot; the second one may hold anything but a
// parenthesis that would follow the last.
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
