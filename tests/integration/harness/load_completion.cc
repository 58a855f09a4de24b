// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/harness/load_completion.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "tools/replay/block_pattern.h"
#include "tools/support/admin.h"

namespace kvtier {

Result<TwoSets> TwoSets::Store(const PrivateDaemon& daemon, const LoadSizes& sizes) {
  KVT_ASSIGN_OR_RETURN(BenchClient client,
                       BenchClient::Connect(daemon, sizes.block_bytes, sizes.layers));
  TwoSets sets(sizes, std::move(client));
  const std::vector<BlockHash> second = BenchClient::Set(2, sizes.blocks);
  for (int turn = 0; turn < 2; ++turn) {
    KVT_RETURN_IF_ERROR(sets.client_.Store(sets.first_));
    KVT_RETURN_IF_ERROR(sets.client_.Store(second));
  }
  return sets;
}

void TwoSets::CheckLayers(kvt::Pool* pool, const kvt::Acquired& acquired, uint32_t layers) const {
  std::vector<std::byte> expected(sizes_.block_bytes);
  std::vector<std::byte> seen(sizes_.block_bytes / sizes_.layers * layers);
  for (size_t i = 0; i < acquired.hits.size(); ++i) {
    FillBlock(first_[i], expected);
    ASSERT_TRUE(pool->Read(acquired.hits[i], seen));
    ASSERT_EQ(std::memcmp(seen.data(), expected.data(), seen.size()), 0)
        << "block " << i << " of " << layers << " layers";
  }
}

void TwoSets::ExpectEachLayerWhenItIsSaidToBe() {
  const auto load =
      Load(KVT_LOAD_LAYERS, [this](kvt::Pool* pool, kvt::Acquired* acquired) -> Status {
        for (uint32_t layers = 1; layers <= sizes_.layers; ++layers) {
          const auto waited = pool->WaitLayers(acquired, layers);
          if (!waited) return FromClient(waited.error());
          EXPECT_GE(waited->layers, layers);
          CheckLayers(pool, *acquired, layers);
        }
        return {};
      });
  ASSERT_TRUE(load) << load.error().ToString();
  EXPECT_EQ(load->ready, sizes_.blocks);
  EXPECT_GT(load->hit[1], sizes_.blocks / 2);
}

}  // namespace kvtier
