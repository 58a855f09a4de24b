// SPDX-License-Identifier: Apache-2.0
#include "base/machine_memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <vector>

#include "base/units.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// The names of the files differ between the two versions of control groups.
struct Controller {
  fs::path mount;
  fs::path group;  // of this process, relative to the mount
  const char* limit;
  const char* used;
  const char* reclaimable;  // the key of memory.stat
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

std::vector<Controller> FindControllers(const fs::path& root) {
  std::vector<Controller> found;
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
      found.push_back(
          {root / "sys/fs/cgroup", group, "memory.max", "memory.current", "inactive_file"});
    } else if (names.find(",memory,") != std::string::npos) {
      found.push_back({root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                       "memory.usage_in_bytes", "total_inactive_file"});
    }
  }
  return found;
}

// Takes the limit of one group over, unless the machine has less (version 1 writes "no limit" as a
// huge number).
void Apply(const Controller& controller, const fs::path& group, uint64_t machine_bytes,
           MachineMemory* memory) {
  const fs::path directory = group.empty() ? controller.mount : controller.mount / group;
  const std::optional<uint64_t> limit = ReadNumber(directory / controller.limit);
  if (!limit || *limit >= machine_bytes) return;
  const uint64_t used = ReadNumber(directory / controller.used).value_or(0);
  const uint64_t dropped =
      std::min(used, ReadKey(directory / "memory.stat", controller.reclaimable).value_or(0));
  const uint64_t held = used - dropped;
  memory->available_bytes =
      std::min(memory->available_bytes, *limit > held ? *limit - held : uint64_t{0});
  if (*limit >= memory->total_bytes) return;
  memory->total_bytes = *limit;
  memory->limited_by = "/" + group.generic_string();
}

}  // namespace

MachineMemory ReadMachineMemory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  MachineMemory memory{.total_bytes = ReadKey(meminfo, "MemTotal").value_or(0) * kKiB,
                       .available_bytes = ReadKey(meminfo, "MemAvailable").value_or(0) * kKiB,
                       .limited_by = {}};
  const uint64_t machine_bytes = memory.total_bytes;
  for (const Controller& controller : FindControllers(root)) {
    // A parent's limit holds for its children. In a container the path may be one of the host's
    // that is not mounted there; its own limit then stands at the mount.
    for (fs::path group = controller.group;; group = group.parent_path()) {
      Apply(controller, group, machine_bytes, &memory);
      if (group.empty()) break;
    }
  }
  return memory;
}

}  // namespace kvtier
