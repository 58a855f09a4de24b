// SPDX-License-Identifier: Apache-2.0
// The checks of `kvtierctl doctor` on a machine: each gives its finding, whether it would hurt a
// kvtierd, and advice.
//
// Checks change nothing but for a file without a name that DiskChecks writes and that is gone with
// its descriptor. Checks that take a `root` read files below it, so that tests can show them any
// machine. Any thread; DiskChecks and DriverCheck may take seconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier {

// kFail: a daemon would not work, or the user would not get the requested service. kWarn: it works,
// but slower or with less than the machine has.
enum class CheckLevel { kOk, kWarn, kFail };

struct Check {
  std::string name;
  CheckLevel level = CheckLevel::kOk;
  std::string found;
  std::string advice;  // empty for kOk
};

// The NVIDIA driver and its GPUs, by loading libcuda. No driver is no fault.
[[nodiscard]] Check DriverCheck();

// A limit of another process by its name in /proc/PID/limits ("Max open files"); UINT64_MAX:
// unlimited. Nothing if the process cannot be looked at.
[[nodiscard]] std::optional<uint64_t> LimitOfProcess(const std::filesystem::path& root,
                                                     uint64_t pid, std::string_view name,
                                                     bool hard);

// Checks the limit of locked memory (RLIMIT_MEMLOCK). `limit_bytes`: UINT64_MAX means no limit.
[[nodiscard]] Check MemlockCheck(uint64_t limit_bytes);

// Descriptors: each client costs a few.
[[nodiscard]] Check DescriptorCheck(uint64_t hard_limit);

// Transparent huge pages, for the arena (anonymous memory) and for pools in host memory (shared).
[[nodiscard]] Check HugepageCheck(const std::filesystem::path& root);

// How much memory is free, and what a control group leaves of it.
[[nodiscard]] Check MemoryCheck(const std::filesystem::path& root);

// How much processor time a control group leaves.
[[nodiscard]] Check CpuCheck(const std::filesystem::path& root);

// Nodes, and whether the kernel moves pages between them by itself.
[[nodiscard]] Check NumaCheck(const std::filesystem::path& root);

// Whether io_uring may be used; without it reads go through threads.
[[nodiscard]] Check IoUringCheck(const std::filesystem::path& root);

// Whether writes to memory that clients lend can be kept from making pages (userfaultfd).
[[nodiscard]] Check LentMemoryCheck();

// The kernel's version: pidfd_open, by which a client's death is seen, came with 5.3.
[[nodiscard]] Check KernelCheck();

// Free space, kind of the file system, O_DIRECT and a quick speed in `directory`, or in the one
// above it, where the daemon would make it. Writes `test_bytes` and reads them back.
[[nodiscard]] std::vector<Check> DiskChecks(const std::filesystem::path& directory,
                                            uint64_t test_bytes);

}  // namespace kvtier
