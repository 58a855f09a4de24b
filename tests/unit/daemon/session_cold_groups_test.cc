// SPDX-License-Identifier: Apache-2.0
// Models of several groups, and a store that has what another host computed of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/session/cold_questions.h"
#include "tests/fakes/fake_cold_store.h"
#include "tests/unit/daemon/grouped_engine.h"
#include "tests/unit/daemon/server_under_test.h"

namespace kvtier {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

class SessionColdGroups : public testing::Test {
 protected:
  // Another host has computed six blocks of each group that `groups` has, and written them to the
  // store; then one that has nothing starts.
  void WriteByAnotherHost() {
    StartHost();
    {
      GroupedEngine engine(daemon_->socket());
      engine.Cache(0, 0, 6);
      engine.Cache(1, 0, 6);
      engine.Cache(2, 0, 3);
      for (uint32_t group = 0; group < 3; ++group) PushOut(&engine, group);
      daemon_->WaitUntil([this] { return store_.objects.size() >= 15; });
    }
    daemon_.reset();
    StartHost();
  }
  void StartHost(int64_t lookup_deadline_ms = 60'000) {
    daemon_ = std::make_unique<ServerUnderTest>(
        [&](Config* config) {
          config->cache.cold_lookup_deadline_ms = lookup_deadline_ms;
          config->cache.cold_after_ms = 0;
          config->cache.cold_min_uses = 0;
        },
        &store_);
  }
  // Fills the group's pool, so that its blocks go to host.
  static void PushOut(GroupedEngine* engine, uint32_t group) {
    const auto blocks = Acquire(&engine->client, engine->pools[group], {}, 16).new_blocks;
    ASSERT_EQ(blocks.size(), 16u);
    engine->client.Send(wire::Release{engine->pools[group], blocks}, /*want_reply=*/true);
    (void)engine->client.Expect<wire::ReleaseReply>();
  }
  // Removes the store's objects of the group's block.
  void Lose(uint32_t group, uint64_t hash) {
    const std::string model = GroupedModel().GroupFingerprint(group).Hex();
    std::erase_if(store_.objects, [&](const auto& object) {
      return object.first.find(model) != std::string::npos &&
             object.first.ends_with(TestHash(hash).Hex());
    });
  }

  FakeColdStore store_;
  std::unique_ptr<ServerUnderTest> daemon_;
};

TEST_F(SessionColdGroups, AnAcquireRestoresWhatTheStoreHasOfAllGroups) {
  WriteByAnotherHost();
  GroupedEngine engine(daemon_->socket());
  const std::vector<BlockHash> hashes = Hashes(1, 6);
  const uint64_t questions = store_.questions;
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  ASSERT_EQ(reply.parts.size(), 3u);
  EXPECT_EQ(reply.parts[0].hits.size(), 6u);
  EXPECT_EQ(reply.parts[1].first_hit, 4u);
  EXPECT_EQ(reply.parts[1].hits.size(), 2u);
  EXPECT_EQ(reply.parts[2].first_hit, 2u);
  EXPECT_EQ(reply.parts[2].hits.size(), 1u);
  for (const auto& part : reply.parts) EXPECT_EQ(part.miss, MissReason::kNone);
  daemon_->WaitUntil([this] { return daemon_->cache().stats().cold.read_blocks == 9; });
  daemon_->OnLoop([&] { EXPECT_EQ(store_.questions - questions, 3u) << "one for each group"; });
}

TEST_F(SessionColdGroups, ALongPromptOfWhichTheStoreHasNothingCostsAQuestionForItsBeginning) {
  StartHost();
  GroupedEngine engine(daemon_->socket());
  const std::vector<BlockHash> hashes = Hashes(1, 2000);
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  EXPECT_THAT(reply.parts[0].hits, IsEmpty());
  daemon_->OnLoop([this] {
    EXPECT_EQ(store_.questions, 1u);
    EXPECT_EQ(daemon_->cache().stats().cold.lookup_blocks, 2000u);
  });
}

// Windows of several sequences stand in one list.
TEST_F(SessionColdGroups, ALookupFindsAllThatTheStoreHasOfWindows) {
  WriteByAnotherHost();
  const std::string model = GroupedModel().GroupFingerprint(1).Hex();
  daemon_->OnLoop([&] {
    const auto written = std::ranges::find_if(store_.objects, [&](const auto& object) {
      return object.first.find(model) != std::string::npos;
    });
    ASSERT_NE(written, store_.objects.end());
    const std::string prefix = written->first.substr(0, written->first.rfind('/') + 1);
    for (const BlockHash& hash : Hashes(1, 320)) store_.objects[prefix + hash.Hex()] = {};
  });
  GroupedEngine engine(daemon_->socket());
  EXPECT_THAT(engine.LookUp(1, Hashes(1, 320)), Each(wire::kInColdStore));
}

TEST_F(SessionColdGroups, ALookupAsksNoMoreOnceItsTimeIsOver) {
  StartHost(/*lookup_deadline_ms=*/1);
  GroupedEngine engine(daemon_->socket());
  daemon_->OnLoop([this] { store_.holds = true; });
  const std::vector<BlockHash> hashes = Hashes(1, 2000);
  engine.client.Send(wire::Lookup{engine.pools[1], hashes});
  daemon_->WaitUntil([this] { return store_.held() == 1; });
  const int64_t asked_us = MonotonicUs();
  daemon_->WaitUntil([&] { return MonotonicUs() - asked_us > 2000; });
  daemon_->OnLoop([this] { store_.Answer(); });
  EXPECT_THAT(engine.client.Expect<wire::LookupReply>().presence, Each(0));
  daemon_->OnLoop([this] {
    EXPECT_EQ(store_.questions, 1u);
    EXPECT_EQ(daemon_->cache().stats().cold.lookup_blocks, kMostAskedAtOnce);
  });
}

TEST_F(SessionColdGroups, ABoundaryThatOneGroupLacksIsNotRestored) {
  WriteByAnotherHost();
  Lose(2, 3);  // the state after six blocks
  Lose(1, 2);  // of the window after two
  GroupedEngine engine(daemon_->socket());
  const std::vector<BlockHash> hashes = Hashes(1, 6);
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  EXPECT_EQ(reply.parts[0].hits.size(), 4u);
  EXPECT_EQ(reply.parts[1].first_hit, 2u);
  EXPECT_EQ(reply.parts[1].hits.size(), 2u);
  EXPECT_EQ(reply.parts[2].first_hit, 1u);
  EXPECT_EQ(reply.parts[0].miss, MissReason::kUnknown);
}

TEST_F(SessionColdGroups, WhatThisHostHasIsNotAskedFor) {
  WriteByAnotherHost();
  GroupedEngine engine(daemon_->socket());
  engine.Cache(0, 0, 6);
  engine.Cache(1, 4, 2);
  engine.Cache(2, 2, 1);
  const uint64_t questions = store_.questions;
  const std::vector<BlockHash> hashes = Hashes(1, 6);
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  EXPECT_EQ(reply.parts[0].hits.size(), 6u);
  daemon_->OnLoop([&] { EXPECT_EQ(store_.questions, questions); });
}

TEST_F(SessionColdGroups, AGroupThatOnlyTheStoreHasCompletesTheOthers) {
  WriteByAnotherHost();
  GroupedEngine engine(daemon_->socket());
  daemon_->OnLoop([this] { store_.available = false; });
  engine.Cache(0, 0, 6);
  engine.Cache(1, 0, 6);
  daemon_->OnLoop([this] { store_.available = true; });
  const std::vector<BlockHash> hashes = Hashes(1, 6);
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  EXPECT_EQ(reply.parts[0].hits.size(), 6u);
  EXPECT_EQ(reply.parts[2].first_hit, 2u);
  daemon_->WaitUntil([this] { return daemon_->cache().stats().cold.read_blocks == 1; });
}

TEST_F(SessionColdGroups, AStoreThatFailsCostsTheBoundaryAndNoMore) {
  WriteByAnotherHost();
  GroupedEngine engine(daemon_->socket());
  daemon_->OnLoop([this] { store_.refuses = true; });
  const std::vector<BlockHash> hashes = Hashes(1, 6);
  const auto reply = engine.client.Call<wire::AcquireReply>(engine.AcquireOf(hashes));
  for (const auto& part : reply.parts) EXPECT_THAT(part.hits, IsEmpty());
  EXPECT_EQ(reply.parts[1].new_blocks.size(), 2u);
}

TEST_F(SessionColdGroups, ALookupTellsWhatTheStoreHasOfWindowsAndStates) {
  WriteByAnotherHost();
  Lose(2, 2);
  GroupedEngine engine(daemon_->socket());
  EXPECT_THAT(engine.LookUp(0, Hashes(1, 6)), Each(wire::kInColdStore));
  EXPECT_THAT(engine.LookUp(1, Hashes(1, 6)), Each(wire::kInColdStore));
  EXPECT_THAT(engine.LookUp(2, Hashes(1, 3)),
              ElementsAre(wire::kInColdStore, 0, wire::kInColdStore));
}

}  // namespace
}  // namespace kvtier
