// SPDX-License-Identifier: Apache-2.0
#include "tiers/memory/mapped_arena.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"

namespace kvtier {
namespace {

// The largest slice, equal to the largest buffer that io_uring registers in one piece.
constexpr uint64_t kMaxSliceBytes = 1 * kGiB;

// Between two calls of the pinner, so that other threads get the driver's locks, which
// are not given in turn.
constexpr auto kPauseBetweenPieces = std::chrono::microseconds(100);

using SteadyClock = std::chrono::steady_clock;

double SecondsBetween(SteadyClock::time_point from, SteadyClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Result<std::unique_ptr<MappedArena>> MappedArena::Create(MappedArenaOptions options,
                                                         EventQueue* loop) {
  options.bytes -= options.bytes % options.slab_bytes;
  if (options.bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "arena_too_small",
                     fmt::format("less than one slab of {}", FormatByteSize(options.slab_bytes)));
  }
  const uint64_t memory_bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (options.bytes > memory_bytes) {
    return MakeError(ErrorCode::kResourceExhausted, "arena_exceeds_memory",
                     fmt::format("{} asked for, the machine has {}", FormatByteSize(options.bytes),
                                 FormatByteSize(memory_bytes)));
  }
  // The claim on memory is made slice by slice, by touching.
  Result<ArenaMapping> mapping =
      options.keep
          ? ArenaMapping::MapKept(options.bytes, options.slab_bytes, std::move(options.kept_arena),
                                  std::move(options.kept_table))
          : ArenaMapping::MapAnonymous(options.bytes);
  if (!mapping) return tl::unexpected<Error>(std::move(mapping).error());
  return std::unique_ptr<MappedArena>(
      new MappedArena(std::move(options), loop, std::move(*mapping)));
}

MappedArena::MappedArena(MappedArenaOptions options, EventQueue* loop, ArenaMapping mapping)
    : options_(std::move(options)),
      loop_(loop),
      mapping_(std::move(mapping)),
      arena_(mapping_.arena()),
      self_(std::make_shared<MappedArena*>(this)),
      may_pin_(options_.pinner != nullptr) {
  Place();
  if (!mapping_.huge_pages()) {
    Note(
        "host arena: the kernel has no huge pages for memory that is kept "
        "(/sys/kernel/mm/transparent_hugepage/shmem_enabled); its first use takes longer");
  }
}

void MappedArena::Prepare() {
  KVT_CHECK(!preparer_.joinable());
  std::function<void()> give_way;
  if (options_.pinner != nullptr) give_way = [pinner = options_.pinner] { pinner->GiveWay(); };
  toucher_ = std::make_unique<MemoryToucher>(arena_, options_.touch_threads, std::move(give_way));
  preparer_ = std::thread([this] { PrepareSlices(); });
  pthread_setname_np(preparer_.native_handle(), "arena-prepare");
}

MappedArena::~MappedArena() {
  stopping_ = true;
  if (preparer_.joinable()) {
    toucher_->Stop();
    preparer_.join();
    toucher_.reset();
  }
  if (stays_mapped_) return;
  for (const auto slice : pinned_) options_.pinner->Unpin(slice);
}

void MappedArena::LeaveMapped() {
  stays_mapped_ = true;
  mapping_.LeaveMapped();
}

void MappedArena::OnGrowth(std::function<void(std::span<std::byte>)> listener) {
  listener_ = std::move(listener);
  if (listener_ && ready_bytes_ > 0) listener_(arena_.first(ready_bytes_));
}

void MappedArena::Place() {
  if (options_.numa_node < 0) return;
  constexpr unsigned kMaskBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 16> mask{};
  const auto node = static_cast<unsigned>(options_.numa_node);
  if (node >= kMaskBits * mask.size()) return;
  mask[node / kMaskBits] = 1UL << node % kMaskBits;
  if (::syscall(SYS_mbind, arena_.data(), arena_.size(), MPOL_PREFERRED, mask.data(),
                kMaskBits * mask.size(), 0) != 0) {
    Note(fmt::format("host arena: not placed on NUMA node {} ({}); copies may be slower", node,
                     ErrnoName(errno)));
  }
}

void MappedArena::Pin(std::span<std::byte> slice) {
  // Copies of slots stay within a piece, since slots stay within a slab.
  const uint64_t slab_bytes = options_.slab_bytes;
  const uint64_t piece_bytes =
      std::max(options_.pinned_at_once_bytes / slab_bytes, uint64_t{1}) * slab_bytes;
  for (uint64_t at = 0; at < slice.size() && may_pin_ && !stopping_; at += piece_bytes) {
    if (at > 0) std::this_thread::sleep_for(kPauseBetweenPieces);
    PinPiece(slice.subspan(at, std::min(piece_bytes, slice.size() - at)));
  }
}

void MappedArena::PinPiece(std::span<std::byte> piece) {
  const Status pinned = options_.pinner->Pin(piece);
  if (pinned) {
    pinned_.push_back(piece);
    return;
  }
  // Pinning that failed once is not tried again with every slice.
  may_pin_ = false;
  Note(fmt::format("host arena: not pinned from {} on, copies there are slow: {}",
                   FormatByteSize(static_cast<uint64_t>(piece.data() - arena_.data())),
                   pinned.error().ToString()));
}

void MappedArena::Note(std::string note) {
  PostToLoop([note = std::move(note)](MappedArena* arena) {
    if (arena->options_.log) arena->options_.log(note);
  });
}

void MappedArena::PrepareSlices() {
  const auto start = SteadyClock::now();
  ArenaTimes times;
  uint64_t prepared = 0;
  uint64_t slice_bytes = options_.slab_bytes;
  while (prepared < arena_.size()) {
    if (stopping_) return;
    const auto slice = arena_.subspan(prepared, std::min(slice_bytes, arena_.size() - prepared));
    const auto waiting = SteadyClock::now();
    if (const int failure = toucher_->WaitFor(prepared + slice.size()); failure != 0) {
      if (failure == ECANCELED) return;
      PostToLoop([](MappedArena* arena) { arena->growing_ = false; });
      return Note(fmt::format("host arena: memory ended at {} of {} ({}); the tier works with that",
                              FormatByteSize(prepared), FormatByteSize(arena_.size()),
                              ErrnoName(failure)));
    }
    const auto pinning = SteadyClock::now();
    times.pages_s += SecondsBetween(waiting, pinning);
    // While this slice is pinned the next are touched.
    Pin(slice);
    times.pin_s += SecondsBetween(pinning, SteadyClock::now());
    PostToLoop([slice](MappedArena* arena) { arena->AddSlice(slice); });
    prepared += slice.size();
    if (2 * slice_bytes <= kMaxSliceBytes) slice_bytes *= 2;
  }
  times.seconds = SecondsBetween(start, SteadyClock::now());
  PostToLoop([times](MappedArena* arena) {
    if (arena->options_.on_complete) arena->options_.on_complete(times);
  });
}

void MappedArena::PostToLoop(std::function<void(MappedArena*)> event) {
  loop_->Post([weak = std::weak_ptr(self_), event = std::move(event)] {
    if (const auto arena = weak.lock()) event(*arena);
  });
}

void MappedArena::AddSlice(std::span<std::byte> slice) {
  ready_bytes_ += slice.size();
  growing_ = ready_bytes_ < arena_.size();
  if (listener_) listener_(slice);
}

}  // namespace kvtier
