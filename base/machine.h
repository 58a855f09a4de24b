// SPDX-License-Identifier: Apache-2.0
// How much memory and processor time a process may use: the machine's, or less where a control
// group (a container, a systemd slice) limits it; and whether another process lives.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace kvtier {

struct MachineMemory {
  uint64_t total_bytes = 0;
  // Memory that a process can take without swapping and without being killed for it. Caches of
  // files count as free, because the kernel drops them for processes.
  uint64_t available_bytes = 0;
  // The path of the control group whose limit is lower than the machine's memory; empty: none.
  std::string limited_by;
};

// Reads /proc/meminfo and the control groups (versions 1 and 2) of this process, below `root`.
// A file that cannot be read limits nothing; without meminfo all is 0. Any thread.
[[nodiscard]] MachineMemory ReadMachineMemory(const std::filesystem::path& root = "/");

// The processor time that control groups (versions 1 and 2) allow this process, in cores, rounded
// up; none if they allow all. Reads below `root`. Any thread.
[[nodiscard]] std::optional<uint32_t> ReadProcessorLimit(const std::filesystem::path& root = "/");

// Whether the process has ended or is ending: one that was killed keeps its number until its files
// are closed and its parent has asked for its exit code.
[[nodiscard]] bool IsGone(pid_t pid);

}  // namespace kvtier
