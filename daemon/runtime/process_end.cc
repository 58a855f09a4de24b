// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/process_end.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "base/posix.h"
#include "base/units.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr size_t kStackBytes = 64 * kKiB;
// Enough for the next daemon to open the GPU, which its driver would hold up meanwhile. A longer
// time would keep this one's context, half a gigabyte of VRAM, although the process seems gone.
constexpr int kLingerMs = 500;
constexpr size_t kMostSpared = 1024;
constexpr size_t kMostRings = 64;

struct MappedRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// Lies at the low end of the child's stack, which its few frames do not reach: its data must be
// there when no thread of this process can be relied on to leave a lock or the heap in order.
struct Task {
  int parent = -1;  // a pidfd
  // Descriptors of the GPU's driver, in rising order.
  std::array<int, kMostSpared> spared{};
  size_t spared_count = 0;
  // Requests that were under way give their files back, and with them the locks of the disk tier's
  // files, when the ring ends. A mapped one does not.
  std::array<MappedRange, kMostRings> rings{};
  size_t ring_count = 0;
};

// Shares even the parent's thread-local storage, so nothing may be called here that writes there:
// none of these calls fails, since all signals but SIGKILL are blocked and the ranges are what they
// were. They are made without the C library's functions, which a sanitizer replaces by its own.
//
// A signal at the parent's death would come too early, at the end of its main thread: its other
// threads would then be the last that have the memory, and the process would not be gone before it
// is given back.
[[maybe_unused, gnu::no_sanitize("address", "undefined")]] int TearDown(void* argument) {
  const Task& task = *static_cast<const Task*>(argument);
  ::syscall(SYS_prctl, PR_SET_NAME, "kvtier-teardown");
  pollfd ended{.fd = task.parent, .events = POLLIN, .revents = 0};
  while (::syscall(SYS_poll, &ended, 1, -1) != 1) {
  }
  unsigned first = 0;
  for (size_t i = 0; i < task.spared_count; ++i) {
    const auto spared = static_cast<unsigned>(task.spared[i]);
    if (spared > first) ::syscall(SYS_close_range, first, spared - 1, 0U);
    first = spared + 1;
  }
  ::syscall(SYS_close_range, first, ~0U, 0U);
  for (size_t i = 0; i < task.ring_count; ++i) {
    const MappedRange& ring = task.rings[i];
    ::syscall(SYS_munmap, ring.begin, ring.end - ring.begin);
  }
  ::syscall(SYS_poll, nullptr, 0, kLingerMs);
  return 0;
}

[[maybe_unused]] void FindSpared(Task* task) {
  std::vector<int> spared;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd", error)) {
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (error || !target.starts_with("/dev/nvidia")) continue;
    spared.push_back(std::stoi(entry.path().filename().string()));
  }
  std::ranges::sort(spared);
  task->spared_count = std::min(spared.size(), kMostSpared);
  std::copy_n(spared.begin(), task->spared_count, task->spared.begin());
}

[[maybe_unused]] void FindRings(Task* task) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line) && task->ring_count < kMostRings;) {
    MappedRange range;
    if (!line.ends_with("anon_inode:[io_uring]")) continue;
    if (std::sscanf(line.c_str(), "%lx-%lx", &range.begin, &range.end) != 2) continue;
    task->rings[task->ring_count++] = range;
  }
}

[[maybe_unused]] tl::unexpected<Error> Failed() {
  return tl::unexpected(
      ErrnoError(ErrorCode::kResourceExhausted, errno, "starting the process for the teardown"));
}

}  // namespace

Status StartTeardownProcess() {
  static_assert(sizeof(Task) < kStackBytes / 2);
#ifdef __SANITIZE_THREAD__
  return MakeError(ErrorCode::kUnsupported, "thread_sanitizer",
                   "the thread sanitizer's state cannot be shared with a child");
#else
  UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self.valid()) return Failed();
  // The stack is never unmapped, and the descriptor never closed: the child needs both until this
  // process has ended.
  void* const stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return Failed();
  auto* const task = ::new (stack) Task{.parent = self.get()};
  FindSpared(task);
  FindRings(task);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  // Without a signal at its end, which would look like that of a program that the daemon started.
  const pid_t child = ::clone(&TearDown, static_cast<std::byte*>(stack) + kStackBytes,
                              CLONE_VM | CLONE_FILES, task);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) {
    ::munmap(stack, kStackBytes);
    errno = error;
    return Failed();
  }
  (void)self.Release();
  return {};
#endif
}

}  // namespace kvtier
