// SPDX-License-Identifier: Apache-2.0
// Brings blocks from disk to host memory for engines that will load them into their regions soon.
//
// An engine knows of requests that wait for their turn seconds before it has blocks for them, and
// the disk could read meanwhile. A prefetch must cost no one else more than it can be worth:
//
//  * A read begins only while no load and no store waits for the disk or for space in host, and
//    while the disk has less than half of CacheOptions::max_disk_read_bytes to read.
//  * The blocks that were brought and have not been used yet take at most half of host, and half of
//    the tenant's limit there. They count for a minute: an engine may have given the request up.
//  * Tenants with quotas take turns; the requests of one tenant are served in their order.
//  * It counts as no use of the blocks. But the prefix becomes the youngest in host, so that it is
//    there when its request begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "tiers/policy/tenant_queues.h"
#include "tiers/space/host_slots.h"
#include "tiers/space/offload_queue.h"
#include "tiers/state/cache_state.h"
#include "tiers/transfer/block_taker.h"
#include "tiers/transfer/loader.h"
#include "tiers/transfer/prefix_touches.h"
#include "tiers/types/block_key_hash.h"

namespace kvtier {

// Event loop only.
class HostPrefetch final : public BlockListener {
 public:
  // The limit of one tenant's requests that have not ended, each of which counts as kRequestPrice
  // more, because ticks look at all requests; requests beyond it are answered at once. Tenants
  // without quotas have twice as much together, of which each leaves as much to others as it has.
  static constexpr size_t kMostBlocks = 1u << 18;
  static constexpr size_t kRequestPrice = 64;
  // `in_memory`: as many blocks of the prefix are in memory now, or on their way for another.
  using Done = std::function<void(uint32_t in_memory)>;

  HostPrefetch(CacheState* state, PrefixFinder* finder, HostSlots* host, Loader* loader,
               OffloadQueue* to_host, PrefixTouches* touches);

  // Brings the prefix of the sequence that tiers of this machine have; these hashes are its first,
  // or follow others that were asked for before. `done` is called once, from this call or a later
  // event, and not if the session closes before. It must not call the cache.
  void Begin(SessionId session, NamespaceId namespace_id, std::vector<BlockHash> hashes, Done done);
  void ForgetSession(SessionId session);
  // Takes in which reads have ended, and begins others. Looks at CacheOptions::acquire_part_blocks
  // blocks; once for each event that the cache schedules, behind all that clients wait for.
  void Pump();
  // Ends requests that could not go on for long, and finds out which of the brought blocks have
  // been used.
  void Tick();

  // Reads that were begun for a request.
  void OnEnded(std::span<const BlockEnd> ends) override;
  [[nodiscard]] bool Idle() const { return requests_.empty(); }

 private:
  using RequestId = uint64_t;
  struct Request {
    SessionId session;
    NamespaceId namespace_id;
    TenantId tenant;
    TenantLine line;
    std::vector<BlockHash> hashes;
    Done done;
    size_t next = 0;       // before it all has been seen to
    size_t end = 0;        // where the prefix ends, as far as that is known
    uint32_t reading = 0;  // blocks

    // Its share of kMostBlocks.
    [[nodiscard]] size_t price() const { return hashes.size() + kRequestPrice; }
  };
  struct Share {
    size_t waiting_blocks = 0;   // of requests that have not ended, with their prices
    uint64_t brought_bytes = 0;  // that count
  };
  // A tenant's part of the share that it has with others.
  struct Waiting {
    size_t blocks = 0;
    int64_t moved_ms = 0;  // when a request last got on, or the first came
  };
  using Requests = std::unordered_map<RequestId, Request>;
  // A block that was brought, or is being read.
  struct Brought {
    BlockKey block;
    TenantId tenant;
    uint64_t bytes = 0;
    uint32_t uses = 0;  // of the block, before
    int64_t until_ms = 0;
  };
  struct Read {
    RequestId request = 0;
    size_t position = 0;
  };

  // Sees to the next block of the first request in the line. False if it has to wait.
  [[nodiscard]] bool Step(std::deque<RequestId>* line);
  [[nodiscard]] bool SeeToNext(RequestId id, Request* request);
  // Reads a block that only the disk has.
  [[nodiscard]] Loader::HostRead ReadFromDisk(RequestId id, Request* request, EntryIndex entry);
  // The tenant may bring so much more.
  [[nodiscard]] bool HasRoom(TenantId tenant, uint64_t slot_bytes) const;
  // The fate of a block: it was used, or has left host or been there for long before that.
  enum class Fate : uint8_t { kWaits, kUsed, kUnused };
  [[nodiscard]] Fate FateOf(const Brought& brought, int64_t now_ms) const;
  void EndIfDone(Requests::iterator request);
  // The request waits no more.
  void GiveBack(const Request& request);

  CacheState& state_;
  PrefixFinder& finder_;
  HostSlots& host_;
  Loader& loader_;
  OffloadQueue& to_host_;
  PrefixTouches& touches_;
  Requests requests_;
  RequestId last_request_ = 0;
  TenantQueues<RequestId> lines_;  // of requests that have blocks to be seen to; some have ended
  std::map<EntryRef, Read> reads_;
  std::deque<Brought> brought_;
  uint64_t brought_bytes_ = 0;  // of all tenants
  std::vector<Share> shares_;   // by tenant
  std::unordered_map<TenantLine, Waiting> waiting_;
  uint32_t looks_left_ = 0;  // in this event
};

}  // namespace kvtier
