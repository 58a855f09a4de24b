// SPDX-License-Identifier: Apache-2.0
// The common part of the engines behind BlockFile: requests, the queue of those that wait for their
// turn, and the record of memory registered with the kernel. Internal to tiers/storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/units.h"
#include "tiers/storage/block_file.h"
#include "tiers/storage/io_completion.h"

namespace kvtier {

// No system call moves more than this; larger requests take several.
inline constexpr uint64_t kMaxTransferBytes = 1 * kGiB;

enum class IoKind : uint8_t { kRead, kWrite, kSync };

// One request on its way through an engine.
struct IoRequest {
  IoKind kind = IoKind::kSync;
  uint32_t file = 0;
  uint64_t offset = 0;
  std::byte* data = nullptr;  // never written through by kWrite
  uint64_t bytes = 0;
  IoCheck check;  // of a read; may be empty
  IoDone done;

  // Progress, for the engine: a transfer that ends short is tried once more for its rest.
  uint64_t moved_bytes = 0;
  bool continued = false;

  // Takes in the outcome of a system call that was to move `asked` bytes: bytes moved, or a
  // negative errno. Returns true when the request has ended, with `*status` saying how.
  [[nodiscard]] bool Advance(int64_t outcome, uint64_t asked, Status* status);
  // "read of 4096 bytes at 1048576 in file 0".
  [[nodiscard]] std::string Describe() const;
  // The remains of a request that has ended: its callbacks move there.
  [[nodiscard]] IoCompletion End(Status status) {
    return {std::move(done), std::move(status), std::move(check), bytes};
  }
};

// Serves the requests of a set of files. All but name() is called on the event loop.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  virtual void Submit(IoRequest request) = 0;
  virtual void RegisterMemory(std::span<std::byte> memory) = 0;
  virtual void UnregisterFrom(std::byte* from, std::function<void()> done) = 0;
};

// One BlockFile for each of the engine's files, all keeping it alive.
[[nodiscard]] std::vector<std::unique_ptr<BlockFile>> MakeBlockFiles(
    std::shared_ptr<IoEngine> engine, const std::vector<uint64_t>& file_bytes);

// The requests of an engine that wait for their turn, and the bound on those in flight. A client
// waits for reads, and mostly none for writes, so reads go first; but a few writes (and syncs) are
// always in flight if there are any, because a drive that reads without end must still take the
// blocks that have to leave host memory. If many bytes of reads are queued, half wait: a drive may
// report all its reads in one burst, and must find work while those are checked. Among each other
// reads, and writes, keep their order. One thread at a time.
class IoQueue {
 public:
  // `places`: requests in flight at once.
  explicit IoQueue(uint32_t places) : places_(places) {}

  void Push(IoRequest request);
  [[nodiscard]] bool CanTake() const {
    return reads_in_flight_ + writes_in_flight_ < places_ && (MayRead() || !writes_.empty());
  }
  // REQUIRES: CanTake().
  [[nodiscard]] IoRequest Take();
  // A request that was taken has ended.
  void Finish(const IoRequest& request) {
    --InFlight(request.kind);
    if (IsRead(request.kind)) read_bytes_in_flight_ -= request.bytes;
  }
  // Empties the queue.
  [[nodiscard]] std::vector<IoCompletion> CancelWaiting();

 private:
  [[nodiscard]] static bool IsRead(IoKind kind) { return kind == IoKind::kRead; }
  [[nodiscard]] bool MayRead() const;
  [[nodiscard]] uint32_t& InFlight(IoKind kind) {
    return IsRead(kind) ? reads_in_flight_ : writes_in_flight_;
  }

  const uint32_t places_;
  std::deque<IoRequest> reads_;
  std::deque<IoRequest> writes_;
  uint32_t reads_in_flight_ = 0;
  uint32_t writes_in_flight_ = 0;
  uint64_t read_bytes_in_flight_ = 0;
  uint64_t read_bytes_waiting_ = 0;
};

// The kernel's bound on one registered buffer.
inline constexpr uint64_t kMaxRegisteredBytes = 1 * kGiB;
// The table's size: 2 TiB of arena in full entries.
inline constexpr int kMaxRegisteredEntries = 2048;

inline constexpr int kNotRegistered = -1;

// Which memory the ring knows, and under which numbers. Used by one thread.
class RegisteredMemory {
 public:
  struct Entry {
    std::span<std::byte> memory;
    int number = 0;
  };

  // Cuts `memory` into new entries, leaving out memory that is registered already.
  [[nodiscard]] std::vector<Entry> Plan(std::span<std::byte> memory);
  // Takes out all memory from `from` on. Returns the entries that the kernel is to learn anew: one
  // of which the part before it stays, and empty ones, whose numbers are free.
  [[nodiscard]] std::vector<Entry> CutFrom(std::byte* from);
  // The entry is known to the kernel from now on.
  void Add(const Entry& entry);
  // The number of the entry that holds all of [data, data + bytes), or kNotRegistered.
  [[nodiscard]] int Find(const std::byte* data, uint64_t bytes) const;

 private:
  [[nodiscard]] std::optional<int> TakeNumber();

  int next_number_ = 0;
  std::vector<int> free_numbers_;
  std::vector<Entry> entries_;  // by address
};

}  // namespace kvtier
