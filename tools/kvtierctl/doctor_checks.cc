// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/doctor_checks.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/io_uring.h>
#include <linux/magic.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

#include "base/machine.h"
#include "base/posix.h"
#include "base/units.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// The oldest driver that kvtierd's CUDA runtime accepts, by the driver's number and by its version
// of CUDA.
constexpr int kWantedDriver = KVTIER_DRIVER;
constexpr int kWantedCuda = KVTIER_DRIVER_CUDA;
// Below this the smallest tiers of `kvtierd --dev` leave an engine nothing.
constexpr uint64_t kLittleMemoryBytes = 2 * kGiB;
constexpr uint64_t kLittleDiskBytes = 10 * kGiB;
constexpr uint64_t kMemlockBytes = 64 * kMiB;
constexpr uint64_t kFewDescriptors = 4096;
// A disk tier that is slower than this loses to computing the tokens again on most models.
constexpr double kSlowDiskBytesPerS = 200e6;
constexpr uint64_t kPieceBytes = 1 * kMiB;
// Bounds the speed test on a slow disk.
constexpr double kSpeedSeconds = 1.5;

Check Ok(std::string name, std::string found) {
  return {std::move(name), CheckLevel::kOk, std::move(found), {}};
}
Check Warn(std::string name, std::string found, std::string advice) {
  return {std::move(name), CheckLevel::kWarn, std::move(found), std::move(advice)};
}
Check Fail(std::string name, std::string found, std::string advice) {
  return {std::move(name), CheckLevel::kFail, std::move(found), std::move(advice)};
}

// The first line of a file; empty if it cannot be read.
std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "[madvise]" in "always [madvise] never" is the choice in effect.
std::string Chosen(const std::string& choices) {
  const size_t begin = choices.find('[');
  const size_t end = choices.find(']', begin);
  if (begin == std::string::npos || end == std::string::npos) return "unknown";
  return choices.substr(begin + 1, end - begin - 1);
}

// A function of a loaded library; null if it has none of that name. dlsym returns void*, which only
// reinterpret_cast makes a function again; POSIX guarantees that such a cast works.
template <typename Function>
Function Symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

Check DriverCheck() {
  constexpr const char* kName = "driver";
  // The library is never closed, because the driver cannot be unloaded.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Ok(kName, "no NVIDIA driver: pools are in host memory");
  }
  const auto init = Symbol<int (*)(unsigned)>(library, "cuInit");
  const auto version_of = Symbol<int (*)(int*)>(library, "cuDriverGetVersion");
  const auto count_of = Symbol<int (*)(int*)>(library, "cuDeviceGetCount");
  if (init == nullptr || version_of == nullptr || count_of == nullptr) {
    return Fail(kName, "libcuda.so.1 lacks functions", "install the driver of the GPU again");
  }
  int version = 0;
  int devices = 0;
  (void)version_of(&version);
  if (const int code = init(0); code != 0) {
    return Fail(kName, fmt::format("the driver is there but does not start (CUDA error {})", code),
                "see nvidia-smi; in a container, start it with --gpus all and the NVIDIA runtime");
  }
  (void)count_of(&devices);
  std::string found =
      fmt::format("CUDA {}.{}, {} GPU(s)", version / 1000, version % 1000 / 10, devices);
  if (version < kWantedCuda) {
    return Warn(kName, std::move(found),
                fmt::format("this kvtierd needs driver {} or later for pools in VRAM; until then "
                            "they are in host memory",
                            kWantedDriver));
  }
  if (devices == 0) {
    return Warn(kName, std::move(found),
                "no GPU is visible: see CUDA_VISIBLE_DEVICES, or --gpus of the container");
  }
  return Ok(kName, std::move(found));
}

// "Max open files            1024                 524288               files     ".
std::optional<uint64_t> LimitOfProcess(const fs::path& root, uint64_t pid, std::string_view name,
                                       bool hard) {
  std::ifstream file(root / "proc" / std::to_string(pid) / "limits");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream fields(line.substr(name.size()));
    std::string value;
    fields >> value;
    if (hard) fields >> value;
    if (value == "unlimited") return UINT64_MAX;
    uint64_t number = 0;
    const char* const end = value.data() + value.size();
    if (std::from_chars(value.data(), end, number).ptr == end && !value.empty()) return number;
  }
  return std::nullopt;
}

Check MemlockCheck(uint64_t limit_bytes) {
  if (limit_bytes == UINT64_MAX) return Ok("memlock", "unlimited");
  std::string found = FormatByteSize(limit_bytes);
  if (limit_bytes >= kMemlockBytes) return Ok("memlock", std::move(found));
  return Warn("memlock", std::move(found),
              "buffers of io_uring may not be registered: ulimit -l unlimited, LimitMEMLOCK= of "
              "the unit, or --ulimit memlock=-1 of the container");
}

Check DescriptorCheck(uint64_t hard_limit) {
  if (hard_limit == UINT64_MAX) return Ok("descriptors", "unlimited");
  std::string found = fmt::format("{} at most", hard_limit);
  if (hard_limit >= kFewDescriptors) return Ok("descriptors", std::move(found));
  return Warn("descriptors", std::move(found),
              fmt::format("many clients would be refused: ulimit -Hn {}, or LimitNOFILE= of the "
                          "unit",
                          kFewDescriptors));
}

Check HugepageCheck(const fs::path& root) {
  const fs::path directory = root / "sys/kernel/mm/transparent_hugepage";
  const std::string enabled = Chosen(FirstLine(directory / "enabled"));
  const std::string shared = Chosen(FirstLine(directory / "shmem_enabled"));
  std::string found = fmt::format("transparent: {}; shared memory: {}", enabled, shared);
  if (enabled == "never") {
    return Warn("hugepages", std::move(found),
                "host memory is touched and copied more slowly: echo madvise > "
                "/sys/kernel/mm/transparent_hugepage/enabled");
  }
  if (shared == "never" || shared == "deny") {
    return Warn("hugepages", std::move(found),
                "host memory that outlives the daemon is pinned and given back more slowly: echo "
                "advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  }
  return Ok("hugepages", std::move(found));
}

Check MemoryCheck(const fs::path& root) {
  const MachineMemory memory = ReadMachineMemory(root);
  std::string found = fmt::format("{} of {} available", FormatByteSize(memory.available_bytes),
                                  FormatByteSize(memory.total_bytes));
  if (!memory.limited_by.empty()) {
    found += fmt::format(", limited by the control group {}", memory.limited_by);
  }
  if (memory.available_bytes >= kLittleMemoryBytes) return Ok("memory", std::move(found));
  return Warn("memory", std::move(found),
              "little is left for tiers: lower host.bytes and pool.bytes, or raise the limit of "
              "the container");
}

Check CpuCheck(const fs::path& root) {
  const std::optional<uint32_t> cores = ReadProcessorLimit(root);
  if (!cores) return Ok("cpu", "no quota");
  std::string found = fmt::format("a quota of {} core{}", *cores, *cores == 1 ? "" : "s");
  if (*cores >= 2) return Ok("cpu", std::move(found));
  return Warn("cpu", std::move(found),
              "checksums and copies share it with the event loop: give the daemon two cores");
}

Check NumaCheck(const fs::path& root) {
  const std::string nodes = FirstLine(root / "sys/devices/system/node/online");
  if (nodes.empty() || nodes == "0") return Ok("numa", "one node");
  const bool balancing = FirstLine(root / "proc/sys/kernel/numa_balancing") == "1";
  std::string found =
      fmt::format("nodes {}, automatic balancing {}", nodes, balancing ? "on" : "off");
  if (!balancing) return Ok("numa", std::move(found));
  return Warn("numa", std::move(found),
              "the kernel moves pages of the tiers about: sysctl kernel.numa_balancing=0");
}

Check IoUringCheck(const fs::path& root) {
  io_uring_params parameters{};
  const int fd = static_cast<int>(::syscall(SYS_io_uring_setup, 1, &parameters));
  if (fd >= 0) {
    ::close(fd);
    return Ok("io_uring", "allowed");
  }
  const int error = errno;
  std::string found = fmt::format("refused ({})", ErrnoName(error));
  const std::string disabled = FirstLine(root / "proc/sys/kernel/io_uring_disabled");
  if (!disabled.empty() && disabled != "0") {
    return Warn("io_uring", std::move(found),
                "the disk tier reads by threads, which costs more processor time: sysctl "
                "kernel.io_uring_disabled=0");
  }
  return Warn("io_uring", std::move(found),
              error == ENOMEM ? "raise what may be locked (memlock)"
                              : "the disk tier reads by threads, which costs more processor time: "
                                "allow io_uring in the seccomp profile of the container");
}

Check LentMemoryCheck() {
  // Faults of this process's own code alone, as the daemon asks.
  const int fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
  if (fd >= 0) {
    ::close(fd);
    return Ok("lent memory", "userfaultfd is allowed");
  }
  return Warn(
      "lent memory", fmt::format("userfaultfd is refused ({})", ErrnoName(errno)),
      "pages that clients' shared memory lacks count to the daemon's memory limit: allow "
      "userfaultfd in the seccomp profile of the container, or let the limit cover all that "
      "clients may lend");
}

Check KernelCheck() {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  if (fd >= 0) {
    ::close(fd);
    return Ok("kernel", "has pidfd_open");
  }
  return Fail("kernel", fmt::format("pidfd_open is refused ({})", ErrnoName(errno)),
              "kvtierd sees by it that a client has died: Linux 5.3 or later, and a seccomp "
              "profile that allows it");
}

namespace {

// A file without a name; O_TMPFILE where the file system has it. Invalid, with errno, if it cannot
// be opened.
UniqueFd OpenUnnamed(const fs::path& directory, int flags) {
  UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600));
  if (fd.valid() || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = directory / "kvtier-doctor-XXXXXX";  // mkostemp writes the name chosen here
  fd = UniqueFd(::mkostemp(name.data(), O_CLOEXEC | flags));
  // The name is removed also after a failure: where O_DIRECT is refused, the kernel has made the
  // file before.
  const int error = errno;
  ::unlink(name.c_str());
  errno = error;
  return fd;
}

// Moves pieces with `io` (pread or pwrite) until all are or the time is over; bytes per second, or
// a negative errno.
template <typename Io>
double Speed(uint64_t bytes, const Io& io) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::chrono::duration<double> elapsed{};
  uint64_t done = 0;
  while (done < bytes && elapsed.count() < kSpeedSeconds) {
    const ssize_t moved = io(static_cast<off_t>(done));
    if (moved <= 0) return -static_cast<double>(moved == 0 ? EIO : errno);
    done += static_cast<uint64_t>(moved);
    elapsed = Clock::now() - begin;
  }
  return static_cast<double>(done) / std::max(elapsed.count(), 1e-9);
}

Check SpeedCheck(const UniqueFd& fd, uint64_t test_bytes) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, kPieceBytes, kPieceBytes) != 0) {
    return Warn("disk speed", "not measured: no memory", "free memory");
  }
  const std::unique_ptr<void, decltype(&::free)> piece(memory, &::free);
  std::memset(memory, 0x5A, kPieceBytes);
  const double written =
      Speed(test_bytes, [&](off_t at) { return ::pwrite(fd.get(), memory, kPieceBytes, at); });
  // A full disk may have taken only a part of it.
  struct stat facts {};
  ::fstat(fd.get(), &facts);
  const double read =
      written < 0 ? written : Speed(static_cast<uint64_t>(facts.st_size), [&](off_t at) {
        return ::pread(fd.get(), memory, kPieceBytes, at);
      });
  if (read < 0) {
    return Fail("disk speed", fmt::format("I/O fails ({})", ErrnoName(static_cast<int>(-read))),
                "see the kernel's log (dmesg); name another directory");
  }
  std::string found = fmt::format("writes {:.2f} GB/s, reads {:.2f} GB/s, one at a time",
                                  written / 1e9, read / 1e9);
  if (std::min(written, read) >= kSlowDiskBytesPerS) return Ok("disk speed", std::move(found));
  return Warn("disk speed", std::move(found),
              "a disk hit may take longer than computing again: name a directory on a local NVMe "
              "disk (disk.directory)");
}

std::string FileSystemWarning(const fs::path& directory) {
  struct statfs facts {};
  if (::statfs(directory.c_str(), &facts) != 0) return {};
  switch (static_cast<unsigned long>(facts.f_type)) {
    case TMPFS_MAGIC:
      return "a tmpfs is memory and does not survive a restart of the machine";
    case NFS_SUPER_MAGIC:
      return "blocks on a network file system are slow and may stall the daemon";
    case OVERLAYFS_SUPER_MAGIC:
      return "a container's own layer is slow and gone with the container: mount a volume";
    default:
      return {};
  }
}

}  // namespace

std::vector<Check> DiskChecks(const fs::path& wanted, uint64_t test_bytes) {
  std::vector<Check> checks;
  std::error_code error;
  fs::path directory = fs::absolute(wanted / "", error).parent_path();
  if (!fs::exists(directory, error)) directory = directory.parent_path();
  const fs::space_info space = fs::space(directory / "", error);
  if (error) {
    checks.push_back(Fail("disk", fmt::format("{}: {}", directory.string(), error.message()),
                          "make the directory above it, or name another (disk.directory)"));
    return checks;
  }
  std::string found = fmt::format("{}: {} of {} free", directory.string(),
                                  FormatByteSize(space.available), FormatByteSize(space.capacity));
  if (const std::string warning = FileSystemWarning(directory); !warning.empty()) {
    checks.push_back(Warn("disk", std::move(found), warning));
  } else if (space.available < kLittleDiskBytes) {
    checks.push_back(Warn("disk", std::move(found),
                          "little is left for a disk tier: name another directory "
                          "(disk.directory), or free space"));
  } else {
    checks.push_back(Ok("disk", std::move(found)));
  }
  UniqueFd fd = OpenUnnamed(directory, O_DIRECT);
  if (fd.valid()) {
    checks.push_back(Ok("O_DIRECT", "works"));
  } else if (errno == EINVAL || errno == EOPNOTSUPP) {
    checks.push_back(Warn("O_DIRECT", fmt::format("refused ({})", ErrnoName(errno)),
                          "reads and writes take up the page cache: name a directory on ext4, XFS "
                          "or btrfs"));
    fd = OpenUnnamed(directory, 0);
  }
  if (!fd.valid()) {
    checks.push_back(Fail("disk rights",
                          fmt::format("{} ({})", directory.string(), ErrnoName(errno)),
                          "this user may not write there: name another directory, or run doctor as "
                          "the daemon's user"));
    return checks;
  }
  if (space.available > 2 * test_bytes) checks.push_back(SpeedCheck(fd, test_bytes));
  return checks;
}

}  // namespace kvtier
