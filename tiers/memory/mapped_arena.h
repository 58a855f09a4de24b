// SPDX-License-Identifier: Apache-2.0
// The host tier's memory on this machine, with huge pages where they are to be had: touched by a
// few threads in the background and pinned for the device. It ends with the process, or may be kept
// for the next one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "base/posix.h"
#include "base/result.h"
#include "base/units.h"
#include "gpu/host_pinner.h"
#include "tiers/memory/arena_mapping.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/memory_toucher.h"

namespace kvtier {

// Where the time until the arena was complete went.
struct ArenaTimes {
  double seconds = 0;
  double pages_s = 0;  // waiting for pages
  double pin_s = 0;    // pinning
};

struct MappedArenaOptions {
  uint64_t bytes = 0;  // rounded down to whole slabs
  uint64_t slab_bytes = 64 * kMiB;
  int touch_threads = 2;
  // Pins each slice before it is used; outlives the arena. Null: nothing is pinned.
  HostPinner* pinner = nullptr;
  // In one call of the pinner, unless a slab is larger: some 20 ms in which others may wait.
  uint64_t pinned_at_once_bytes = 256 * kMiB;
  // The NUMA node to take memory from as long as it has some; -1: any.
  int numa_node = -1;
  // The memory is made of descriptors that may be kept for another process.
  bool keep = false;
  // With `keep`: what an earlier process has left, adopted if both match. May be invalid, or hold
  // anything.
  UniqueFd kept_arena;
  UniqueFd kept_table;
  // Called on the event loop if the memory ends before the capacity is reached, or cannot be pinned
  // or placed as wanted. May be empty.
  std::function<void(std::string)> log;
  // Called on the event loop when all of the arena is ready, after each growth. May be empty.
  std::function<void(const ArenaTimes&)> on_complete;
  // Called on the event loop when memory beyond a lowered capacity has been given back, with how
  // much of it that was. May be empty.
  std::function<void(uint64_t bytes)> on_given_back;
};

// Public calls on the event loop's thread. `loop` must outlive the arena; nothing is called back
// after its destruction.
class MappedArena final : public HostArena {
 public:
  // Maps; no memory is taken before Prepare. Errors: kInvalidArgument "arena_too_small" (less
  // than one slab), kResourceExhausted "arena_exceeds_memory" (more than the machine has), or
  // that or kUnsupported with the errno's name.
  [[nodiscard]] static Result<std::unique_ptr<MappedArena>> Create(MappedArenaOptions options,
                                                                   EventQueue* loop);
  // REQUIRES: no copy or I/O to or from the arena is under way.
  ~MappedArena() override;
  MappedArena(const MappedArena&) = delete;
  MappedArena& operator=(const MappedArena&) = delete;

  // Begins to touch and pin in the background: slices of one slab first, then ever larger ones, up
  // to what an I/O engine registers in one piece. Once; meanwhile whatever maps memory, starts a
  // thread or calls the driver may have to wait, for some milliseconds each time.
  void Prepare();
  // Whether Resize takes the size, once it is rounded down to whole slabs. Errors:
  // kResourceExhausted "arena_exceeds_memory".
  [[nodiscard]] Status MayResize(uint64_t bytes) const;
  // Memory that is pinned goes back in the pieces in which it was pinned: the last one stays while
  // the arena needs a part of it.
  void Resize(uint64_t bytes) override;

  [[nodiscard]] uint64_t capacity_bytes() const override { return capacity_bytes_; }
  [[nodiscard]] uint64_t limit_bytes() const override { return arena_.size(); }
  [[nodiscard]] uint64_t ready_bytes() const override { return ready_bytes_; }
  [[nodiscard]] bool growing() const override { return growing_; }
  [[nodiscard]] std::byte* data() override { return arena_.data(); }
  [[nodiscard]] HostTable* table() override { return mapping_.table(); }
  // A listener set late is told at once, from within this call, of all memory that is ready
  // already.
  void OnGrowth(std::function<void(std::span<std::byte>)> listener) override;

  // For a process that ends next: its end gives back pages and pins, which takes a second that a
  // destruction of the arena would otherwise take.
  void LeaveMapped();

  // "adopted", or the reason why there is nothing in the memory; see ArenaMapping::adoption.
  [[nodiscard]] const std::string& adoption() const { return mapping_.adoption(); }
  // See ArenaMapping.
  [[nodiscard]] uint64_t left_bytes() const { return mapping_.left_bytes(); }
  // For whatever is to hold the memory over the end of this process; the arena owns them. -1
  // without `keep`.
  [[nodiscard]] int arena_descriptor() const { return mapping_.arena_descriptor(); }
  [[nodiscard]] int table_descriptor() const { return mapping_.table_descriptor(); }

 private:
  MappedArena(MappedArenaOptions options, EventQueue* loop, ArenaMapping mapping);
  // Asks for memory of the wanted NUMA node.
  void Place();
  // The size that the preparing thread is to bring about. The latest counts.
  struct Goal {
    uint64_t bytes = 0;
    uint64_t number = 0;
  };
  // On the preparing thread.
  void Work();
  // Waits for a goal after that number; nothing at the end.
  [[nodiscard]] std::optional<Goal> NextGoal(uint64_t after);
  [[nodiscard]] bool Overtaken(const Goal& goal);
  void PrepareSlices(const Goal& goal);
  // Memory has ended before the goal.
  void EndGrowth(const Goal& goal, int failure);
  void GiveBack(uint64_t beyond);
  void SetToucher(MemoryToucher* toucher);
  void FreePages(uint64_t begin, uint64_t end);
  [[nodiscard]] uint64_t EndOf(std::span<const std::byte> piece) const {
    return static_cast<uint64_t>(piece.data() - arena_.data()) + piece.size();
  }
  void Pin(std::span<std::byte> slice);
  void PinPiece(std::span<std::byte> piece);
  void Note(std::string note);
  // Runs `event` on the loop unless the arena has gone by then.
  void PostToLoop(std::function<void(MappedArena*)> event);
  // So much is ready for the goal of this number. Does nothing if that was overtaken.
  void SetReady(uint64_t number, uint64_t bytes);

  const MappedArenaOptions options_;
  EventQueue* const loop_;
  ArenaMapping mapping_;
  const std::span<std::byte> arena_;
  uint64_t capacity_bytes_;
  uint64_t ready_bytes_ = 0;
  bool growing_ = true;
  std::function<void(std::span<std::byte>)> listener_;
  std::shared_ptr<MappedArena*> self_;  // posted events hold it weakly
  bool stays_mapped_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  Goal goal_;                         // written by the loop, guarded by mutex_
  MemoryToucher* toucher_ = nullptr;  // of the preparing thread, to be stopped; guarded by mutex_
  std::atomic<bool> stopping_ = false;
  // The preparing thread's, while there is one.
  std::vector<std::span<std::byte>> pinned_;  // by address
  bool may_pin_ = false;
  uint64_t prepared_ = 0;  // from the arena's start on
  uint64_t touched_ = 0;   // the end of what may have pages
  std::thread preparer_;
};

}  // namespace kvtier
