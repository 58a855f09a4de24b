#include "tiers/mapped_arena.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/errno_error.h"

namespace kvtier {
namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;
// The largest slice, equal to the largest buffer that io_uring registers in one piece.
constexpr uint64_t kMaxSliceBytes = 1 * kGiB;
// A thread looks up from touching this often, so that a stop is quick.
constexpr uint64_t kTouchStepBytes = 32 * kMiB;

// 0 or an errno. The kernel fills the pages without writing to any that exist.
int Touch(std::span<std::byte> memory) {
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  // Before Linux 5.14. Nobody else uses the memory yet.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (size_t i = 0; i < memory.size(); i += page) {
    const_cast<volatile std::byte*>(memory.data())[i] = std::byte{0};
  }
  return 0;
}

// Touches by several threads; 0 or the first errno. Gives up early when `stopping`.
int TouchInParallel(std::span<std::byte> slice, int threads, const std::atomic<bool>& stopping) {
  std::atomic<uint64_t> next = 0;
  std::atomic<int> failure = 0;
  const auto work = [&] {
    while (!stopping && failure == 0) {
      const uint64_t begin = next.fetch_add(kTouchStepBytes);
      if (begin >= slice.size()) return;
      const uint64_t bytes = std::min(kTouchStepBytes, slice.size() - begin);
      if (const int outcome = Touch(slice.subspan(begin, bytes)); outcome != 0) failure = outcome;
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return failure;
}

std::span<std::byte> AlignToHugePage(std::span<std::byte> mapping, uint64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(mapping.data());
  const uint64_t skip = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  return mapping.subspan(skip, bytes);
}

}  // namespace

Result<std::unique_ptr<MappedArena>> MappedArena::Create(MappedArenaOptions options,
                                                         EventQueue* loop) {
  options.bytes -= options.bytes % options.chunk_bytes;
  if (options.bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "arena_too_small",
                     fmt::format("less than one chunk of {}", FormatByteSize(options.chunk_bytes)));
  }
  const uint64_t memory_bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (options.bytes > memory_bytes) {
    return MakeError(ErrorCode::kResourceExhausted, "arena_exceeds_memory",
                     fmt::format("{} asked for, the machine has {}", FormatByteSize(options.bytes),
                                 FormatByteSize(memory_bytes)));
  }
  // Reserved without a claim on memory: the claim is made slice by slice, by touching.
  const uint64_t mapped_bytes = options.bytes + kHugePageBytes;
  void* address = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return tl::unexpected<Error>(
        ErrnoError(ErrorCode::kResourceExhausted, errno,
                   fmt::format("mmap of {} for the host arena", FormatByteSize(mapped_bytes))));
  }
  // Worth having, not needed: without it the pages are small.
  ::madvise(address, mapped_bytes, MADV_HUGEPAGE);
  // A child must not share the pages that the kernel does I/O on.
  ::madvise(address, mapped_bytes, MADV_DONTFORK);
  return std::unique_ptr<MappedArena>(
      new MappedArena(std::move(options), loop, {static_cast<std::byte*>(address), mapped_bytes}));
}

MappedArena::MappedArena(MappedArenaOptions options, EventQueue* loop, std::span<std::byte> mapping)
    : options_(std::move(options)),
      loop_(loop),
      mapping_(mapping),
      arena_(AlignToHugePage(mapping, options_.bytes)),
      self_(std::make_shared<MappedArena*>(this)),
      toucher_([this] { TouchSlices(); }) {
  pthread_setname_np(toucher_.native_handle(), "arena-touch");
}

MappedArena::~MappedArena() {
  stopping_ = true;
  toucher_.join();
  ::munmap(mapping_.data(), mapping_.size());
}

void MappedArena::OnGrowth(std::function<void(std::span<std::byte>)> listener) {
  listener_ = std::move(listener);
  if (listener_ && ready_bytes_ > 0) listener_(arena_.first(ready_bytes_));
}

void MappedArena::TouchSlices() {
  uint64_t touched = 0;
  uint64_t slice_bytes = options_.chunk_bytes;
  while (touched < arena_.size() && !stopping_) {
    const auto slice = arena_.subspan(touched, std::min(slice_bytes, arena_.size() - touched));
    if (const int failure = TouchInParallel(slice, options_.touch_threads, stopping_);
        failure != 0) {
      std::string note =
          fmt::format("host arena: memory ended at {} of {} ({}); the tier works with what it has",
                      FormatByteSize(touched), FormatByteSize(arena_.size()), ErrnoName(failure));
      PostToLoop([note = std::move(note)](MappedArena* arena) {
        if (arena->options_.log) arena->options_.log(note);
      });
      return;
    }
    touched += slice.size();
    if (stopping_) return;
    PostToLoop([slice](MappedArena* arena) { arena->AddSlice(slice); });
    if (2 * slice_bytes <= kMaxSliceBytes) slice_bytes *= 2;
  }
}

void MappedArena::PostToLoop(std::function<void(MappedArena*)> event) {
  loop_->Post([weak = std::weak_ptr(self_), event = std::move(event)] {
    if (const auto arena = weak.lock()) event(*arena);
  });
}

void MappedArena::AddSlice(std::span<std::byte> slice) {
  ready_bytes_ += slice.size();
  if (listener_) listener_(slice);
}

}  // namespace kvtier
