// SPDX-License-Identifier: Apache-2.0
// One session's requests about regions, memory that its client lends: OPEN_REGION, CLOSE_REGION,
// STORE and LOAD.
//
// Memory that the client lends is checked before anything is read from it or written to it: a
// layout lies within the memory, and the memory is as large as the client says. A later change of
// it costs the client its own blocks, and the cache a failed copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/gate.h"
#include "base/result.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/session/models.h"
#include "daemon/session/replies.h"
#include "daemon/session/session_client.h"
#include "gpu/counter_page.h"
#include "protocol/region_messages.h"
#include "tiers/cache.h"

namespace kvtier {

class KeptMemories;
struct Network;

// Event loop only. BlockHandler says how requests are answered.
class RegionHandler {
 public:
  // Everything is borrowed and outlives the handler, but `counters`. The client can write to that
  // page, so that no value of it is read.
  RegionHandler(const SessionClient* client, AttachedPools* pools, Replies* replies, Cache* cache,
                ModelRegistry* models, Network* network, const KeptMemories* kept_memories,
                std::shared_ptr<CounterPage> counters)
      : client_(*client),
        pools_(*pools),
        replies_(*replies),
        cache_(*cache),
        models_(*models),
        network_(*network),
        kept_memories_(*kept_memories),
        counters_(std::move(counters)) {}

  Status OnOpenRegion(const Call& call, const wire::OpenRegion& request);
  Status OnCloseRegion(const Call& call, const wire::CloseRegion& request);
  Status OnStore(const Call& call, const wire::Store& request);
  Status OnLoad(const Call& call, const wire::Load& request);

 private:
  // Memory that the client lends, with the region's share of Network::regions.
  struct Lent {
    LentMemory memory;
    std::shared_ptr<const void> share;
  };
  // Errors: kInvalidArgument "no_descriptor", "bad_region_memory"; kLimitExceeded
  // "too_many_regions" (of the tenant).
  [[nodiscard]] Result<Lent> TakeLentMemory(const wire::OpenRegion& request);
  // Closes a descriptor of the tenant. The share is kept until nothing has it to close any more,
  // which may be long after the region's end.
  [[nodiscard]] std::function<void(UniqueFd)> CloseCounted(std::shared_ptr<const void> share) const;
  // The table beside the memory that the region lies in; null: the client names none.
  [[nodiscard]] std::shared_ptr<const PublishedBlocks> PublishedIn(
      const wire::OpenRegion& request, const std::shared_ptr<const void>& share) const;
  // The model of the region. Errors: of Models::Find; kNotFound "unknown_group"; kInvalidArgument
  // "region_block_bytes"; kLimitExceeded "too_many_blocks".
  [[nodiscard]] Result<ModelHold> Check(const wire::OpenRegion& request) const;
  [[nodiscard]] Status OpenRegion(const Call& call, const wire::OpenRegion& request, Lent lent);
  // Announces the transfer to the cache; its end is reported to the client. Errors: those of
  // AttachedPools::FindRegion and Cache::BeginTransfer; kInvalidArgument "empty_request";
  // kUnavailable "client_hung_up".
  template <typename Message>
  [[nodiscard]] Status BeginTransfer(const Message& request, const LayerOrder& order);
  // The order of a load of a group with so many layers. Errors: kInvalidArgument "bad_counter".
  [[nodiscard]] Result<LayerOrder> OrderOf(const wire::Load& request, uint32_t layers) const;
  void OnTransferred(PoolId region, uint64_t transfer, uint32_t blocks, TransferEnd end);
  // Calls `work(blocks)` with parts of `blocks`, as large as the turns at the loop allow.
  template <typename Block, typename Work>
  void TransferInSteps(std::vector<Block> blocks, Work work);

  const SessionClient& client_;
  AttachedPools& pools_;
  Replies& replies_;
  Cache& cache_;
  ModelRegistry& models_;
  Network& network_;
  const KeptMemories& kept_memories_;
  const std::shared_ptr<CounterPage> counters_;
  uint64_t transfers_in_flight_ = 0;  // blocks, and wire::kTransferPrice for each transfer
  uint64_t region_blocks_ = 0;        // of all regions
  // Last, so that it closes before anything that the cache's answers would use is destroyed.
  Gate gate_;
};

}  // namespace kvtier
