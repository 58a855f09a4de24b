// SPDX-License-Identifier: Apache-2.0
// Which copies a copy engine performs next: requests cut into chunks, by priority and then in order
// of arrival.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/units.h"
#include "gpu/device.h"

namespace kvtier {

class LentMapping;

// Each costs the caller of the hardware a third of a microsecond.
inline constexpr size_t kMaxChunkPieces = 4096;

struct CopyQueueOptions {
  // Bytes handed to the hardware at a time. More amortises the cost of a call, less lets an urgent
  // request through sooner; whole blocks are never cut unless one alone is larger.
  uint64_t chunk_bytes = 16 * kMiB;
  // The same for kBackground while it is not awaited, when only one such chunk is in flight in a
  // direction. Another process's small copies, such as an engine's sampled tokens, share the GPU's
  // copy engine with ours by time slices: a queue that never runs dry holds them up until our slice
  // ends (0.85 ms measured on an H200), a queue that is empty after each chunk does not. One chunk
  // of 2 MiB at a time reaches 36 GB/s there and costs such an engine's step 1.3 % (p99 1.7 %);
  // 4 MiB reaches 39 GB/s at 1.8 % (p99 6.3 %). 0: as any other request.
  uint64_t gentle_chunk_bytes = 2 * kMiB;
  // How fast kBackground may go while it is not awaited; 0: as fast as it can in gentle chunks.
  uint64_t background_bytes_per_s = 0;
};

// A request on its way. The members below `pool` belong to the thread that performs the chunks, but
// for the position and `arrival`, which are the queue's.
struct CopyJob : std::enable_shared_from_this<CopyJob> {
  CopyRequest request;
  std::byte* pool = nullptr;
  std::shared_ptr<LentMapping> lent;  // of a pool that is another process's; `pool` is null then
  size_t next_copy = 0;
  uint64_t next_offset = 0;  // within that copy
  uint64_t arrival = 0;      // grows with each request added
  int chunks_under_way = 0;
  // The request's number in a CountingOrder, if the device keeps one and the request counts.
  std::optional<uint64_t> counting;
  Status outcome;

  [[nodiscard]] bool AllTaken() const { return next_copy == request.copies.size(); }
  // Takes all that is left, and copies none of it, if the pool is not lent any more: so many bytes.
  uint64_t DropUnlessLent();
};

// One contiguous copy, or a part of one that is larger than a chunk.
struct CopyPiece {
  std::byte* pool = nullptr;  // null if the pool is lent host memory
  std::byte* host = nullptr;
  uint64_t bytes = 0;
  uint64_t pool_offset = 0;  // in the pool of the job, which may have no address
  uint32_t job = 0;          // of the chunk's jobs
};

// The unit that is handed to the hardware, or to one thread, at a time.
struct CopyChunk {
  CopyPriority priority = CopyPriority::kDemand;
  uint64_t bytes = 0;
  std::vector<CopyPiece> pieces;
  // The requests with pieces in it, in order.
  std::vector<std::shared_ptr<CopyJob>> jobs;
};

enum class ChunkFill : uint8_t { kAny, kFull };

// Not thread-safe.
class CopyQueue {
 public:
  explicit CopyQueue(const CopyQueueOptions& options) : options_(options) {}

  // `pool` is the address of `request.pool` for the engine, or null if it is reached as `lent`.
  // REQUIRES: some bytes to copy, all in bounds. The job stays valid for the caller
  // until its last chunk has been taken.
  CopyJob& Add(CopyRequest request, std::byte* pool, std::shared_ptr<LentMapping> lent = nullptr);
  // See Device.
  void AwaitBackground(bool awaited) { background_awaited_ = awaited; }
  // The next chunk of a direction: pieces of one priority. Nothing if there is none, if it may not
  // start at `now_ns` (any steady clock), if it would not be as full as `least` says, or if it is
  // background work that must wait until the `in_flight` chunks of this direction have landed.
  [[nodiscard]] std::optional<CopyChunk> Take(CopyDirection direction, int64_t now_ns,
                                              ChunkFill least = ChunkFill::kAny,
                                              size_t in_flight = 0);
  // The direction of the most urgent request, of equally urgent ones that of the earliest; nothing
  // if the queue is empty. For a device that serves both directions by the same threads.
  [[nodiscard]] std::optional<CopyDirection> MostUrgent() const;
  // The earliest time at which Take may have something, if nothing is added; INT64_MAX: never.
  [[nodiscard]] int64_t next_start_ns() const;
  // Takes out the requests of which something has not been taken.
  [[nodiscard]] std::vector<std::shared_ptr<CopyJob>> Clear();

 private:
  struct Jobs : std::deque<std::shared_ptr<CopyJob>> {
    uint64_t bytes = 0;  // not taken yet
  };
  using ByPriority = std::array<Jobs, kCopyPriorityCount>;

  // The priority is background and no acquire waits for it: an engine on the same GPU must not
  // feel it.
  [[nodiscard]] bool Gentle(size_t priority) const;
  // The most bytes that the next chunk of the priority may hold.
  [[nodiscard]] uint64_t MostBytes(bool gentle) const;
  // Moves the front job's next piece into the chunk; false if it does not fit.
  [[nodiscard]] static bool TakePiece(CopyJob& job, uint32_t job_number, uint64_t most_bytes,
                                      CopyChunk* chunk);
  static void FillChunk(Jobs& jobs, uint64_t most_bytes, CopyChunk* chunk);

  const CopyQueueOptions options_;
  std::array<ByPriority, kCopyDirectionCount> jobs_;  // by direction
  uint64_t next_arrival_ = 0;
  int64_t background_start_ns_ = 0;
  bool background_awaited_ = false;
};

}  // namespace kvtier
