// SPDX-License-Identifier: Apache-2.0
// Two sets of blocks that take turns in a pool, and what every device must keep of loads that come
// layer by layer.
#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tools/bench/bench_client.h"
#include "tools/support/private_daemon.h"

namespace kvtier {

struct LoadSizes {
  uint64_t block_bytes = 0;
  uint32_t layers = 0;
  size_t blocks = 0;  // of a set
};

class TwoSets {
 public:
  // Stores both sets in turn, twice: the blocks of the first that the pool cannot hold are in host
  // memory.
  // REQUIRES: the daemon's pool holds little more than one set, its host memory both.
  [[nodiscard]] static Result<TwoSets> Store(const PrivateDaemon& daemon, const LoadSizes& sizes);

  // The first set, loaded in this order, with something done before all of it is waited for.
  [[nodiscard]] Result<TimedLoad> Load(kvt_load_order order,
                                       const BenchClient::BeforeWait& before) {
    return client_.Load(first_, order, before);
  }
  // Expects the first `layers` layers of the hits to hold their bytes.
  void CheckLayers(kvt::Pool* pool, const kvt::Acquired& acquired, uint32_t layers) const;
  // Loads the first set, and expects each layer to be there when a wait for it has ended.
  void ExpectEachLayerWhenItIsSaidToBe();

 private:
  TwoSets(const LoadSizes& sizes, BenchClient client)
      : sizes_(sizes), client_(std::move(client)), first_(BenchClient::Set(1, sizes.blocks)) {}

  LoadSizes sizes_;
  BenchClient client_;
  std::vector<BlockHash> first_;
};

}  // namespace kvtier
