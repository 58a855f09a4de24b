// SPDX-License-Identifier: Apache-2.0
// Copies between pools and host memory, gathered into requests: the common part of the loads,
// layered or not, and the offloads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <span>
#include <vector>

#include "base/units.h"
#include "tiers/state/cache_state.h"
#include "tiers/state/in_flight.h"

namespace kvtier {

// Large enough that a request's overhead vanishes, small enough that blocks arrive, or become
// clean, one after the other.
inline constexpr uint64_t kCopyBatchBytes = 4 * kMiB;
// Loads that are many: each request costs the event loop as much as looking at some dozen blocks.
inline constexpr uint64_t kLargeCopyBatchBytes = 16 * kMiB;
// The bytes of the next request of so many that wait: so few at the end of a line that a client has
// blocks to go on with while the last ones are copied.
[[nodiscard]] constexpr uint64_t CopyBatchBytesOf(uint64_t waiting_bytes) {
  constexpr uint64_t kBatches = 8;
  return std::clamp(waiting_bytes / kBatches, kCopyBatchBytes, kLargeCopyBatchBytes);
}
// However small the pieces are: gathering a request holds the event loop.
inline constexpr size_t kCopyBatchPieces = 1024;
// Likewise of all requests of one direction and line in flight.
inline constexpr uint64_t kCopyPiecesInFlight = 32 * kCopyBatchPieces;
// Pieces that are gathered in one event, a request more or less; the next ones follow in events of
// their own. The first layer of a long prefix goes in one.
inline constexpr uint64_t kCopyPiecesPerEvent = 2 * kCopyBatchPieces;
// However few pieces they have: blocks that turn out to be wrong leave none.
inline constexpr int kCopyBatchesPerEvent = 12;
// A batch ends with so many that no client waits for any more, or that turn out to be wrong.
inline constexpr int kMostFailedOfBatch = 128;
// Prefetches get one part of so many of the bytes that may be read or copied at once, so that a
// load which a client waits for finds capacity to spare.
inline constexpr uint64_t kPrefetchShare = 2;

// A request that is being gathered: pieces of blocks of one pool. Event loop only.
class CopyBatch {
 public:
  CopyBatch(CacheState* state, CopyDirection direction, CopyPriority priority,
            uint64_t most_bytes = kCopyBatchBytes);

  // Whether a piece of that pool can be added: the batch is neither full nor another pool's.
  [[nodiscard]] bool Admits(const CachePool& pool) const {
    return !full() && (pool_ == nullptr || pool_ == &pool);
  }
  [[nodiscard]] bool full() const {
    return bytes_ >= most_bytes_ || request_.copies.size() >= kCopyBatchPieces;
  }
  [[nodiscard]] bool empty() const { return request_.copies.empty(); }
  [[nodiscard]] size_t pieces() const { return request_.copies.size(); }
  // The part of the block's payload, between its block of the pool and its host slot. Returns where
  // in host that is. REQUIRES: Admits(*pool); the block has both places.
  std::span<std::byte> Add(CachePool* pool, EntryIndex entry, uint64_t offset, uint64_t bytes);
  std::span<std::byte> AddBlock(CachePool* pool, EntryIndex entry) {
    return Add(pool, entry, 0, pool->block_bytes);
  }
  // The same for a whole block that comes from another pool, or a region.
  [[nodiscard]] bool AdmitsFrom(const CachePool& pool, const CachePool& source) const {
    return Admits(pool) && (empty() || request_.source == source.memory.get());
  }
  void AddFrom(CachePool* pool, EntryIndex entry, const CachePool& source, BlockIndex block);
  // Sets the counts that the device makes when the copies have landed.
  void Count(std::vector<CountedStep> counted) { request_.counted = std::move(counted); }

  // Null while it is empty.
  [[nodiscard]] CachePool* pool() const { return pool_; }
  [[nodiscard]] CopyPriority priority() const { return request_.priority; }

 private:
  friend class CopyLimiter;

  CacheState& state_;
  const uint64_t most_bytes_;
  CachePool* pool_ = nullptr;
  CopyRequest request_;
  uint64_t bytes_ = 0;
  // Where the last part began: mostly the next one begins there or behind.
  CachePool::PiecePlace at_, at_source_;
  DeviceIndex from_;  // where the source of AddFrom lies
};

// Hands requests of one lane to the devices, counts the bytes in flight, and keeps the
// callbacks with all that they own: a device holds no more than a pointer. Event loop only.
class CopyLimiter {
 public:
  CopyLimiter(CacheState* state, CopyLane lane) : state_(*state), lane_(lane) {}

  // Whether another request of the line may start: less of its is in flight than so many bytes.
  // Other lines' copies do not count: other devices have buses of their own, and other tenants'
  // memory may be slow and has threads of its own where it is.
  [[nodiscard]] bool MayStart(CopyLine line, uint64_t most_bytes) {
    const InFlight& in_flight = in_flight_[line];
    return in_flight.bytes < most_bytes && in_flight.items < kCopyPiecesInFlight;
  }
  // `done` is called once, from a later event, when the copies count as in flight no more; its
  // captures are destroyed with it. It fails, kCancelled, if a region's memory was not lent any
  // more when the copies had ended: what they read may be other bytes. Every other failure is an
  // incident. REQUIRES: not empty.
  void Start(CopyBatch batch, std::function<void(const Status&)> done);
  [[nodiscard]] bool Idle() const { return flights_.empty(); }
  // Counts the pieces of all requests so far.
  [[nodiscard]] uint64_t pieces_started() const { return pieces_started_; }

 private:
  struct Flight {
    CachePool* pool = nullptr;
    InFlightBytes bytes;
    std::function<void(const Status&)> done;
    uint64_t copied_bytes = 0;
    RateMeter* rate = nullptr;
  };
  void OnCopied(std::list<Flight>::iterator flight, Status status);
  [[nodiscard]] CopyMeter& meter() { return state_.stats.Lane(lane_); }
  // The meter that learns from the batch's copies what loads cost; null: from others.
  [[nodiscard]] RateMeter* RateOf(const CopyBatch& batch);

  CacheState& state_;
  const CopyLane lane_;
  std::map<CopyLine, InFlight> in_flight_;
  std::list<Flight> flights_;
  uint64_t pieces_started_ = 0;
};

// Whether the host slot says that it holds the entry's block. REQUIRES: the entry has a host slot.
[[nodiscard]] bool HostSlotIsOf(CacheState& state, const BlockEntry& entry);

// Headers lie far apart, in no processor's cache: what HostSlotIsOf will read is fetched ahead of
// it, for so many blocks.
inline constexpr size_t kHeadersAhead = 8;
void FetchHostHeader(CacheState& state, const BlockEntry& entry);

}  // namespace kvtier
