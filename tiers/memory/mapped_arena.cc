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
  const ArenaMapping::Sizes sizes{options.bytes, memory_bytes - memory_bytes % options.slab_bytes,
                                  options.slab_bytes};
  Result<ArenaMapping> mapping = options.keep
                                     ? ArenaMapping::MapKept(sizes, std::move(options.kept_arena),
                                                             std::move(options.kept_table))
                                     : ArenaMapping::MapAnonymous(sizes);
  if (!mapping) return tl::unexpected<Error>(std::move(mapping).error());
  return std::unique_ptr<MappedArena>(
      new MappedArena(std::move(options), loop, std::move(*mapping)));
}

MappedArena::MappedArena(MappedArenaOptions options, EventQueue* loop, ArenaMapping mapping)
    : options_(std::move(options)),
      loop_(loop),
      mapping_(std::move(mapping)),
      arena_(mapping_.arena()),
      capacity_bytes_(options_.bytes),
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
  // Memory that ends the process when it is touched or pinned must not do so for ever, either.
  if (table() != nullptr && table()->cut_slabs() > 0) table()->BeginAdoption();
  goal_ = {capacity_bytes_, 1};
  preparer_ = std::thread([this] { Work(); });
  pthread_setname_np(preparer_.native_handle(), "arena-prepare");
}

MappedArena::~MappedArena() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (toucher_ != nullptr) toucher_->Stop();
  }
  changed_.notify_all();
  if (preparer_.joinable()) preparer_.join();
  if (stays_mapped_) return;
  for (const auto slice : pinned_) options_.pinner->Unpin(slice);
}

Status MappedArena::MayResize(uint64_t bytes) const {
  if (bytes < limit_bytes() + options_.slab_bytes) return {};
  return MakeError(ErrorCode::kResourceExhausted, "arena_exceeds_memory",
                   fmt::format("{} asked for, this process has reserved addresses for {}",
                               FormatByteSize(bytes), FormatByteSize(limit_bytes())));
}

void MappedArena::Resize(uint64_t bytes) {
  KVT_CHECK(bytes > 0 && bytes % options_.slab_bytes == 0 && bytes <= limit_bytes());
  if (bytes == capacity_bytes_) return;
  capacity_bytes_ = bytes;
  ready_bytes_ = std::min(ready_bytes_, bytes);
  growing_ = ready_bytes_ < bytes;
  if (table() != nullptr) table()->Resize(bytes);
  {
    const std::lock_guard lock(mutex_);
    goal_ = {bytes, goal_.number + 1};
  }
  changed_.notify_all();
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

std::optional<MappedArena::Goal> MappedArena::NextGoal(uint64_t after) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || goal_.number != after; });
  if (stopping_) return std::nullopt;
  return goal_;
}

bool MappedArena::Overtaken(const Goal& goal) {
  const std::lock_guard lock(mutex_);
  return stopping_ || goal_.number != goal.number;
}

void MappedArena::Work() {
  std::optional<Goal> goal;
  while ((goal = NextGoal(goal ? goal->number : 0))) {
    if (goal->bytes < touched_) GiveBack(goal->bytes);
    const uint64_t ready = std::min(prepared_, goal->bytes);
    PostToLoop(
        [number = goal->number, ready](MappedArena* arena) { arena->SetReady(number, ready); });
    if (prepared_ < goal->bytes) PrepareSlices(*goal);
  }
}

// With pauses, as pinning. Pages that were touched ahead of a slice that is not prepared any more
// go, too.
void MappedArena::GiveBack(uint64_t beyond) {
  while (!pinned_.empty() && !stopping_ &&
         EndOf(pinned_.back()) - pinned_.back().size() >= beyond) {
    options_.pinner->Unpin(pinned_.back());
    pinned_.pop_back();
    std::this_thread::sleep_for(kPauseBetweenPieces);
  }
  const uint64_t kept = pinned_.empty() ? beyond : std::max(beyond, EndOf(pinned_.back()));
  const uint64_t given_back = prepared_ - std::min(prepared_, kept);
  prepared_ = std::min(prepared_, kept);
  FreePages(kept, touched_);
  touched_ = std::min(touched_, kept);
  PostToLoop([given_back](MappedArena* arena) {
    if (arena->options_.on_given_back) arena->options_.on_given_back(given_back);
  });
}

// In steps, since the kernel holds a lock meanwhile for which page faults wait.
void MappedArena::FreePages(uint64_t begin, uint64_t end) {
  while (begin < end && !stopping_) {
    const uint64_t bytes = std::min(end - begin, options_.pinned_at_once_bytes);
    mapping_.FreePages(arena_.subspan(begin, bytes));
    begin += bytes;
  }
}

void MappedArena::PrepareSlices(const Goal& goal) {
  const auto start = SteadyClock::now();
  const uint64_t begin = prepared_;
  ArenaTimes times;
  std::function<void()> give_way;
  if (options_.pinner != nullptr) give_way = [pinner = options_.pinner] { pinner->GiveWay(); };
  touched_ = std::max(touched_, goal.bytes);
  MemoryToucher toucher(arena_.subspan(begin, goal.bytes - begin), options_.touch_threads,
                        std::move(give_way));
  SetToucher(&toucher);
  uint64_t slice_bytes = options_.slab_bytes;
  int failure = 0;
  while (prepared_ < goal.bytes && failure == 0 && !Overtaken(goal)) {
    const auto slice = arena_.subspan(prepared_, std::min(slice_bytes, goal.bytes - prepared_));
    const auto waiting = SteadyClock::now();
    failure = toucher.WaitFor(prepared_ + slice.size() - begin);
    if (failure != 0) break;
    const auto pinning = SteadyClock::now();
    times.pages_s += SecondsBetween(waiting, pinning);
    // While this slice is pinned the next are touched.
    Pin(slice);
    times.pin_s += SecondsBetween(pinning, SteadyClock::now());
    prepared_ += slice.size();
    PostToLoop([number = goal.number, ready = prepared_](MappedArena* arena) {
      arena->SetReady(number, ready);
    });
    if (2 * slice_bytes <= kMaxSliceBytes) slice_bytes *= 2;
  }
  SetToucher(nullptr);
  if (failure != 0 && failure != ECANCELED) return EndGrowth(goal, failure);
  if (prepared_ < goal.bytes) return;
  times.seconds = SecondsBetween(start, SteadyClock::now());
  PostToLoop([times](MappedArena* arena) {
    if (arena->options_.on_complete) arena->options_.on_complete(times);
  });
}

void MappedArena::SetToucher(MemoryToucher* toucher) {
  const std::lock_guard lock(mutex_);
  toucher_ = toucher;
  if (toucher_ != nullptr && stopping_) toucher_->Stop();
}

void MappedArena::EndGrowth(const Goal& goal, int failure) {
  PostToLoop([number = goal.number](MappedArena* arena) {
    if (arena->goal_.number == number) arena->growing_ = false;
  });
  Note(fmt::format("host arena: memory ended at {} of {} ({}); the tier works with that",
                   FormatByteSize(prepared_), FormatByteSize(goal.bytes), ErrnoName(failure)));
}

void MappedArena::PostToLoop(std::function<void(MappedArena*)> event) {
  loop_->Post([weak = std::weak_ptr(self_), event = std::move(event)] {
    if (const auto arena = weak.lock()) event(*arena);
  });
}

// The loop alone writes the goal, and may read it without the lock.
void MappedArena::SetReady(uint64_t number, uint64_t bytes) {
  if (number != goal_.number || bytes <= ready_bytes_) return;
  const auto slice = arena_.subspan(ready_bytes_, bytes - ready_bytes_);
  ready_bytes_ = bytes;
  growing_ = ready_bytes_ < capacity_bytes_;
  if (listener_) listener_(slice);
}

}  // namespace kvtier
