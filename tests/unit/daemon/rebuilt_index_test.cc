// SPDX-License-Identifier: Apache-2.0
// A client's view of blocks that a rebuild of the index found by their headers.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "tests/fakes/temporary_directory.h"
#include "tests/unit/daemon/daemon_under_test.h"
#include "tests/unit/daemon/grouped_engine.h"
#include "tests/unit/daemon/verbs.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

using testing::Each;
using testing::SizeIs;

class RebuiltIndex : public testing::Test {
 protected:
  RebuiltIndex() { Start(); }

  void Start() {
    daemon_ = std::make_unique<DaemonUnderTest>(directory_.path());
    ASSERT_TRUE(daemon_->status());
  }
  // The daemon's blocks go to disk first.
  void LoseIndexAndRestart() {
    daemon_.reset();
    EXPECT_GT(std::filesystem::remove_all(directory_.path() / "disk" / "index"), 0u);
    Start();
  }
  static std::vector<uint8_t> LookUp(WireClient* client, PoolId pool,
                                     const std::vector<BlockHash>& hashes) {
    return client->Call<wire::LookupReply>(wire::Lookup{.pool = pool, .hashes = hashes}).presence;
  }

  TestDirectory directory_;
  std::unique_ptr<DaemonUnderTest> daemon_;
};

TEST_F(RebuiltIndex, ALookupFindsWhatAnAcquireServes) {
  const std::vector<BlockHash> hashes = Hashes(1, 8);
  {
    WireClient client(daemon_->socket());
    (void)Fill(&client, client.Attach().pool, hashes);
  }
  LoseIndexAndRestart();
  WireClient client(daemon_->socket());
  const PoolId pool = client.Attach().pool;
  EXPECT_THAT(LookUp(&client, pool, hashes), Each(wire::kUnverifiedOnDisk));
  EXPECT_THAT(Acquire(&client, pool, hashes, 0).hits, SizeIs(8));
}

TEST_F(RebuiltIndex, ALookupForARegionFindsWhatALoadBrings) {
  constexpr uint32_t kBlocks = 8;
  constexpr uint64_t kBytes = kBlocks * 4096;
  const std::vector<BlockHash> hashes = Hashes(1, kBlocks);
  {
    WireClient client(daemon_->socket());
    (void)Fill(&client, client.Attach().pool, hashes);
  }
  LoseIndexAndRestart();
  WireClient client(daemon_->socket());
  (void)client.Hello();
  const auto model = client.Call<wire::RegisterModelReply>(wire::RegisterModel{TestModel()}).model;
  const UniqueFd memory(::memfd_create("region", MFD_CLOEXEC));
  ASSERT_EQ(::fallocate(memory.get(), 0, 0, kBytes), 0);
  client.SendWithDescriptor(
      wire::OpenRegion{
          .model = model, .bytes = kBytes, .blocks = kBlocks, .pieces = {{0, 4096, 4096}}},
      memory.get());
  const PoolId region = client.Expect<wire::OpenRegionReply>().region;
  EXPECT_THAT(LookUp(&client, region, hashes), Each(wire::kUnverifiedOnDisk));
  wire::Load load{.region = region, .transfer = 1};
  for (uint32_t i = 0; i < kBlocks; ++i) load.items.push_back({i, hashes[i]});
  client.Send(load);
  const auto done = client.Receive();
  ASSERT_TRUE(done && done->Is(wire::MessageType::kTransferDone));
  EXPECT_EQ(wire::Decode<wire::TransferDone>(done->payload)->copied, kBlocks);
  EXPECT_THAT(LookUp(&client, region, hashes), Each(wire::kPresentInHost | wire::kPersistedOnDisk));
}

TEST_F(RebuiltIndex, GroupsAreAcquiredTogether) {
  {
    GroupedEngine engine(daemon_->socket());
    engine.Cache(0, 0, 4);
    engine.Cache(1, 2, 2);
    engine.Cache(2, 1, 1);
  }
  LoseIndexAndRestart();
  GroupedEngine engine(daemon_->socket());
  const std::vector<BlockHash> hashes = Hashes(1, 4);
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  EXPECT_THAT(reply.parts.at(0).hits, SizeIs(4));
}

}  // namespace
}  // namespace kvtier
