// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <span>
#include <vector>

#include "base/c_pointer.h"
#include "base/posix.h"
#include "base/units.h"
#include "tools/bench/ceiling.h"

namespace kvtier {
namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;
constexpr uint64_t kMaxRegisteredBytes = 1 * kGiB;  // the kernel's bound on one buffer

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (ready_) ::io_uring_queue_exit(&ring_);
  }

  [[nodiscard]] Status Open(unsigned entries, int fd, std::span<std::byte> memory) {
    int result = ::io_uring_queue_init(entries, &ring_,
                                       IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (result == -EINVAL) result = ::io_uring_queue_init(entries, &ring_, 0);
    if (result < 0) return tl::unexpected(ErrnoError(ErrorCode::kUnsupported, -result, "io_uring"));
    ready_ = true;
    const iovec buffer{memory.data(), memory.size()};
    result = ::io_uring_register_buffers(&ring_, &buffer, 1);
    if (result >= 0) result = ::io_uring_register_files(&ring_, &fd, 1);
    if (result < 0) return tl::unexpected(ErrnoError(ErrorCode::kIoError, -result, "registering"));
    return {};
  }
  [[nodiscard]] io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  bool ready_ = false;
};

// At most `depth` requests at once.
Status ReadAll(Ring& ring, std::span<std::byte> memory, uint64_t depth, const ReadWork& work) {
  std::deque<uint64_t> free_slots(memory.size() / work.request_bytes);
  std::iota(free_slots.begin(), free_slots.end(), uint64_t{0});
  uint64_t submitted = 0;
  uint64_t completed = 0;
  while (completed < work.requests) {
    while (submitted < work.requests && submitted - completed < depth) {
      // The one that has waited longest, so that all of the memory is used.
      const uint64_t slot = free_slots.front();
      free_slots.pop_front();
      io_uring_sqe* sqe = ::io_uring_get_sqe(ring.get());
      ::io_uring_prep_read_fixed(sqe, 0, memory.data() + slot * work.request_bytes,
                                 static_cast<unsigned>(work.request_bytes),
                                 work.offset + submitted++ * work.request_bytes, 0);
      sqe->flags |= IOSQE_FIXED_FILE;
      sqe->user_data = slot;
    }
    if (const int result = ::io_uring_submit_and_wait(ring.get(), 1); result < 0) {
      return tl::unexpected(ErrnoError(ErrorCode::kIoError, -result, "submitting"));
    }
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(ring.get(), &cqe) == 0) {
      if (cqe->res != static_cast<int>(work.request_bytes)) {
        return MakeError(ErrorCode::kIoError, "short_io", fmt::format("read gave {}", cqe->res));
      }
      free_slots.push_back(cqe->user_data);
      ::io_uring_cqe_seen(ring.get(), cqe);
      ++completed;
    }
  }
  return {};
}

}  // namespace

Result<double> ReadWithIoUring(const ReadWork& work) {
  const UniqueFd fd(::open(work.path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!fd.valid()) {
    return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "opening " + work.path));
  }
  const uint64_t depth = std::max<uint64_t>(1, work.queue_bytes / work.request_bytes);
  const uint64_t slots =
      std::max(depth, std::min(work.memory_bytes, kMaxRegisteredBytes) / work.request_bytes);
  const uint64_t memory_bytes = slots * work.request_bytes;
  const uint64_t rounded_bytes =
      (memory_bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const CPointer<std::byte, std::free> memory(
      static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, rounded_bytes)));
  // As the daemon's arena: fewer pieces for the disk to fill. Touched, so that no fault is timed.
  ::madvise(memory.get(), rounded_bytes, MADV_HUGEPAGE);
  std::memset(memory.get(), 1, rounded_bytes);
  Ring ring;
  KVT_RETURN_IF_ERROR(
      ring.Open(static_cast<unsigned>(depth), fd.get(), {memory.get(), memory_bytes}));
  const auto start = std::chrono::steady_clock::now();
  KVT_RETURN_IF_ERROR(ReadAll(ring, {memory.get(), memory_bytes}, depth, work));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace kvtier
