// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/units.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// Marks a process that the kernel is taking down, in the flags of /proc/PID/stat: PF_EXITING.
constexpr uint64_t kExitingFlag = 0x4;

// A control group of this process, and where the groups of its hierarchy are mounted.
struct Hierarchy {
  bool is_version_2 = false;
  fs::path mount;
  fs::path group;  // relative to the mount
};

// A file that holds one number; none if it is "max" or not there.
std::optional<uint64_t> ReadNumber(const fs::path& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

// The value of `key` in a file of lines "key value ...".
std::optional<uint64_t> ReadKey(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(key + " ") || line.starts_with(key + ":")) {
      const size_t digits = line.find_first_of("0123456789", key.size());
      if (digits == std::string::npos) return std::nullopt;
      return std::strtoull(line.c_str() + digits, nullptr, 10);
    }
  }
  return std::nullopt;
}

// The hierarchies that limit `resource`: that of version 2, and version 1's of that name.
std::vector<Hierarchy> FindHierarchies(const fs::path& root, const std::string& resource) {
  std::vector<Hierarchy> found;
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  // Each line is "hierarchy:controllers:path"; version 2 has no controllers.
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (names == ",,") {
      found.push_back({true, root / "sys/fs/cgroup", group});
    } else if (names.find("," + resource + ",") != std::string::npos) {
      found.push_back({false, root / "sys/fs/cgroup" / resource, group});
    }
  }
  return found;
}

// Calls `visit` with the directory and the name of each group whose limit holds for this process. A
// parent's limit holds for its children. In a container the path may be one of the host's that is
// not mounted there; its own limit then stands at the mount.
template <typename Visit>
void VisitGroups(const fs::path& root, const std::string& resource, Visit visit) {
  for (const Hierarchy& hierarchy : FindHierarchies(root, resource)) {
    for (fs::path group = hierarchy.group;; group = group.parent_path()) {
      visit(hierarchy, group.empty() ? hierarchy.mount : hierarchy.mount / group, group);
      if (group.empty()) break;
    }
  }
}

}  // namespace

MachineMemory ReadMachineMemory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const uint64_t machine_bytes = ReadKey(meminfo, "MemTotal").value_or(0) * kKiB;
  MachineMemory memory{.total_bytes = machine_bytes,
                       .available_bytes = ReadKey(meminfo, "MemAvailable").value_or(0) * kKiB,
                       .limited_by = {}};
  VisitGroups(root, "memory", [&](const Hierarchy& at, const fs::path& path, const fs::path& name) {
    const bool v2 = at.is_version_2;
    const auto limit = ReadNumber(path / (v2 ? "memory.max" : "memory.limit_in_bytes"));
    // Version 1 writes "no limit" as a huge number.
    if (!limit || *limit >= machine_bytes) return;
    const uint64_t used =
        ReadNumber(path / (v2 ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
    const uint64_t dropped = std::min(
        used,
        ReadKey(path / "memory.stat", v2 ? "inactive_file" : "total_inactive_file").value_or(0));
    const uint64_t held = used - dropped;
    memory.available_bytes =
        std::min(memory.available_bytes, *limit > held ? *limit - held : uint64_t{0});
    if (*limit >= memory.total_bytes) return;
    memory.total_bytes = *limit;
    memory.limited_by = "/" + name.generic_string();
  });
  return memory;
}

std::optional<uint32_t> ReadProcessorLimit(const fs::path& root) {
  std::optional<uint32_t> least;
  VisitGroups(root, "cpu", [&](const Hierarchy& at, const fs::path& path, const fs::path&) {
    uint64_t quota = 0;
    uint64_t period = 0;
    if (at.is_version_2) {
      // "QUOTA PERIOD", or "max PERIOD".
      std::ifstream file(path / "cpu.max");
      if (!(file >> quota >> period)) return;
    } else {
      // Version 1 writes "no limit" as -1.
      quota = ReadNumber(path / "cpu.cfs_quota_us").value_or(0);
      period = ReadNumber(path / "cpu.cfs_period_us").value_or(0);
    }
    if (quota == 0 || period == 0 || quota > UINT32_MAX) return;
    const auto cores = static_cast<uint32_t>((quota + period - 1) / period);
    least = std::min(least.value_or(cores), cores);
  });
  return least;
}

bool IsGone(pid_t pid) {
  if (pid <= 0) return false;
  // EPERM would mean that it lives under another user.
  if (::kill(pid, 0) != 0) return errno == ESRCH;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  // The name, the second field, may contain anything; flags are the seventh field after it.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 6; ++i) fields >> skipped;
  uint64_t flags = 0;
  return static_cast<bool>(fields >> flags) && (flags & kExitingFlag) != 0;
}

}  // namespace kvtier
