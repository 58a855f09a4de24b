// SPDX-License-Identifier: Apache-2.0
// A router that knows events alone agrees with the cache.
#include "daemon/events/event_stream.h"

#include <gtest/gtest.h>

#include "daemon/events/event_peer.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/seeded_random.h"
#include "tests/unit/daemon/event_reader.h"
#include "tests/unit/tiers/cache_fixture.h"

namespace kvtier {
namespace {

constexpr const char* kTopic = "kv@pod@model";

class EventStreamTest : public CacheTest {
 protected:
  ~EventStreamTest() override { cache_.reset(); }

  static EventsConfig Format() {
    return {.pod = "pod",
            .tenants = {"tenant"},
            .format = EventFormat::kVllmBytes,
            .buffer_steps = 100};
  }

  // A cache that publishes, small enough that blocks wander through all tiers.
  void Open(const EventsConfig& format = Format()) {
    MakeStream(format);
    Start({.pool_blocks = 16, .host_slots = 16, .disk_slots = 32, .events = stream_.get()});
    stream_->SetCache(cache_.get());
  }
  // A new process has a new stream, and routers begin anew with it.
  void Restart() {
    cache_.reset();
    clock_.Advance(1000);
    MakeStream(Format());
    setup_.events = stream_.get();
    DieAndAdopt();
    stream_->SetCache(cache_.get());
  }
  void MakeStream(const EventsConfig& format) {
    changes_ = 0;
    stream_ = std::make_unique<EventStream>(
        format, &clock_,
        [this](const NamespaceIdentity& identity) -> std::optional<EventStream::Name> {
          if (!named_) return std::nullopt;
          const bool is_first = identity == Identity("tenant", 1);
          return EventStream::Name{.model = is_first ? "model" : identity.model.Hex(),
                                   .group = std::nullopt};
        },
        [this] { ++changes_; }, /*rows_per_step=*/8);
    view_ = {};
    read_ = first_ = stream_->ring().next();
  }
  // Returns how many steps it takes.
  uint64_t WorkAll() {
    uint64_t steps = 1;
    while (stream_->Work()) ++steps;
    return steps;
  }
  // As many models of the tenant as engines with regions may register one after the other.
  void MeetModels(uint32_t models) {
    for (uint32_t i = 0; i < models; ++i) {
      NamespaceIdentity identity = Identity("tenant", 2);
      identity.model.bytes[0] = static_cast<uint8_t>(i);
      identity.model.bytes[1] = static_cast<uint8_t>(i >> 8);
      const auto region = cache_->OpenRegion(kAlice, identity,
                                             {.lent = {.bytes = kBlockBytes},
                                              .blocks = 1,
                                              .block_tokens = kBlockTokens,
                                              .pieces = {{0, kBlockBytes, kBlockBytes}}});
      ASSERT_TRUE(region) << region.error().ToString();
      cache_->CloseRegion(*region, [] {});
    }
  }
  // Reads the batches published since the last call.
  void ReadAll() {
    ASSERT_GE(read_, stream_->ring().first()) << "read more often";
    for (; read_ < stream_->ring().next(); ++read_) {
      const PublishedBatch& batch = stream_->ring()[read_];
      EXPECT_EQ(batch.sequence, read_);
      view_.Apply(*batch.topic, *batch.payload);
    }
  }
  // Applies all that a feed has now, whose numbers must follow `last`, or may begin anywhere if it
  // is 0. Returns the last number.
  uint64_t Apply(EventFeed* feed, uint64_t last, RouterView* view) {
    while (const auto batch = feed->Next()) {
      if (last != 0) {
        EXPECT_EQ(batch->sequence, last + 1);
      }
      last = batch->sequence;
      view->Apply(*batch->topic, *batch->payload);
    }
    return last;
  }
  // As `kvtierctl ls` has it.
  [[nodiscard]] RouterView::Blocks Listed() const {
    RouterView::Blocks listed;
    for (const BlockRecord& block : cache_->Walk(0, UINT32_MAX, UINT32_MAX, {}).blocks) {
      for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
        if (!block.presence.in(tier)) continue;
        listed.emplace(block.key.hash.Hex(), MediumName(tier, EventFormat::kVllm));
      }
    }
    return listed;
  }
  void ExpectViewIsTheListing() {
    WorkAll();
    ReadAll();
    EXPECT_EQ(view_.BlocksOf(kTopic), Listed());
  }

  void RandomStep(SeededRandom* random);
  void RandomSequence(SeededRandom* random);

  FakeClock clock_;
  bool named_ = true;
  uint64_t changes_ = 0;
  std::unique_ptr<EventStream> stream_;
  RouterView view_;
  uint64_t first_ = 0;  // of this life
  uint64_t read_ = 0;
};

// Acquires, computes and releases a sequence, whatever comes of it.
void EventStreamTest::RandomSequence(SeededRandom* random) {
  const Hashes hashes = Sequence(random->Below(12), static_cast<uint32_t>(random->Between(1, 6)));
  const auto wanted = static_cast<uint32_t>(random->Below(hashes.size() + 1));
  const Result<AcquireReply> reply = TryAcquire(kAlice, hashes, wanted);
  if (!reply) return;
  Handles blocks = HandlesOf(*reply);
  for (const BlockHandle block : reply->new_blocks) {
    const auto depth = static_cast<uint32_t>(blocks.size());
    blocks.push_back(block);
    if (depth >= hashes.size() || random->Chance(0.1)) continue;
    CommitRequest request{.hash = hashes[depth], .depth = depth};
    if (depth > 0) request.parent = hashes[depth - 1];
    (void)TryCommit(kAlice, block, request);
  }
  std::ranges::reverse(blocks);
  if (random->Chance(0.5)) machine_->loop.RunAll();
  Release(kAlice, blocks);
}

void EventStreamTest::RandomStep(SeededRandom* random) {
  const uint64_t choice = random->Below(100);
  if (choice < 60) return RandomSequence(random);
  if (choice < 75) {
    const BlockKey key{pool_.namespace_id, TestHash(random->Below(12), random->Below(6))};
    const uint64_t tier = random->Below(4);
    cache_->Evict(key, tier == 3 ? std::nullopt : std::optional(static_cast<Tier>(tier)));
  } else if (choice < 85) {
    (void)cache_->Prefetch(pool_.id, Sequence(random->Below(12), 6));
  } else if (choice < 95) {
    for (uint64_t events = random->Below(8); events > 0; --events) machine_->loop.RunOne();
  } else {
    machine_->clock.Advance(static_cast<int64_t>(random->Below(1000)));
    cache_->Tick();
  }
}

TEST_F(EventStreamTest, TellsWhichTiersHoldABlock) {
  Open();
  const Hashes hashes = Sequence(1, 2);
  Put(hashes);
  ExpectViewIsTheListing();
  EXPECT_TRUE(view_.BlocksOf(kTopic).contains({hashes[0].Hex(), "GPU"}));
  Drain();
  EvictFromPool();
  ExpectViewIsTheListing();
  EXPECT_FALSE(view_.BlocksOf(kTopic).contains({hashes[0].Hex(), "GPU"}));
  EXPECT_TRUE(view_.BlocksOf(kTopic).contains({hashes[0].Hex(), "CPU"}));
  EXPECT_TRUE(view_.BlocksOf(kTopic).contains({hashes[0].Hex(), "STORAGE"}));
}

TEST_F(EventStreamTest, AsksToBePublishedWhenSomethingHasHappened) {
  Open();
  WorkAll();
  const uint64_t before = changes_;
  Put(Sequence(1, 1));
  EXPECT_GT(changes_, before);
}

TEST_F(EventStreamTest, TellsWhatIsCachedOnceAnEngineHasNamedItsModel) {
  named_ = false;
  Open();
  Put(Sequence(1, 4));
  WorkAll();
  EXPECT_EQ(stream_->ring().next(), first_);
  named_ = true;
  ExpectViewIsTheListing();
  EXPECT_GE(view_.BlocksOf(kTopic).size(), 4u);
}

TEST_F(EventStreamTest, OneWalkOverTheDirectoryIsForAllModelsThatGotTheirNames) {
  named_ = false;
  Open();
  Put(Sequence(1, 16));
  MeetModels(40);
  WorkAll();
  named_ = true;
  EXPECT_LE(WorkAll(), cache_->SizeOfReplay(/*max_rows=*/8).steps + 2);
  ExpectViewIsTheListing();
}

TEST_F(EventStreamTest, ATenantHasSoManyTopicsAndNoMore) {
  Open();
  Put(Sequence(1, 4));
  WorkAll();
  MeetModels(1000);
  WorkAll();
  EXPECT_EQ(stream_->counters().untold, 1000 + 1 - EventStream::kMaxTopicsPerTenant);
  EventPeerCounters counters;
  const uint64_t before = stream_->ring().next();
  EventFeed feed = EventFeed::Live(stream_.get(), &counters);
  EXPECT_LE(stream_->ring().next() - before,
            EventStream::kMaxTopicsPerTenant * (1 + cache_->SizeOfReplay(/*max_rows=*/8).steps));
  RouterView view;
  Apply(&feed, 0, &view);
  EXPECT_EQ(view.BlocksOf(kTopic), Listed());
}

TEST_F(EventStreamTest, SaysNothingOfTenantsThatAreNotNamed) {
  EventsConfig format = Format();
  format.tenants.clear();
  Open(format);
  Put(Sequence(1, 4));
  WorkAll();
  EXPECT_EQ(stream_->ring().next(), first_);
  EXPECT_EQ(stream_->counters().stored, 0u);
}

TEST_F(EventStreamTest, ViewFromEventsEqualsTheListingAfterRandomOperations) {
  Open();
  SeededRandom random(1);
  for (int step = 1; step <= 100'000; ++step) {
    RandomStep(&random);
    if (step % 20 == 0) WorkAll();
    ASSERT_NO_FATAL_FAILURE(ReadAll());
    if (step % 500 == 0) {
      machine_->loop.RunAll();
      ExpectViewIsTheListing();
    }
    if (step % 20'000 == 10'000) {
      Restart();
      ExpectViewIsTheListing();
    }
    ASSERT_FALSE(HasFailure()) << "in step " << step;
  }
  EXPECT_GT(stream_->counters().removed, 0u);
}

// Each step of the snapshot shows another moment: batches published meanwhile make it whole.
TEST_F(EventStreamTest, SnapshotAndWhatFollowsItAddUpWhileBlocksMove) {
  Open();
  SeededRandom random(2);
  EventPeerCounters counters;
  for (int round = 0; round < 300; ++round) {
    for (int step = 0; step < 20; ++step) RandomStep(&random);
    WorkAll();
    RouterView late;
    const uint64_t begun = stream_->ring().next();
    EventFeed feed = EventFeed::Live(stream_.get(), &counters);
    uint64_t last = begun - 1;
    while (const auto batch = feed.Next()) {
      ASSERT_EQ(batch->sequence, ++last) << "in round " << round;
      late.Apply(*batch->topic, *batch->payload);
      if (random.Chance(0.5)) RandomStep(&random);
      if (random.Chance(0.3)) stream_->Work();
    }
    machine_->loop.RunAll();
    WorkAll();
    Apply(&feed, last, &late);
    ASSERT_EQ(late.BlocksOf(kTopic), Listed()) << "in round " << round;
  }
  EXPECT_GE(counters.snapshots, 300u);
}

TEST_F(EventStreamTest, AReplayOfWhatTheRingHasIsWhatWasPublished) {
  Open();
  Put(Sequence(1, 3));
  WorkAll();
  Put(Sequence(2, 3));
  WorkAll();
  ReadAll();
  EventPeerCounters counters;
  EventFeed feed = EventFeed::Replay(stream_.get(), &counters, first_);
  RouterView replayed;
  EXPECT_EQ(Apply(&feed, first_ - 1, &replayed), stream_->ring().next() - 1);
  EXPECT_EQ(replayed.topics(), view_.topics());
  EXPECT_EQ(counters.snapshots, 0u);
}

TEST_F(EventStreamTest, AReplayFromBeforeTheRingBeginsWithASnapshot) {
  EventsConfig format = Format();
  format.buffer_steps = 2;
  Open(format);
  for (uint64_t stream = 0; stream < 8; ++stream) {
    Put(Sequence(stream, 2));
    WorkAll();
  }
  ASSERT_GT(stream_->ring().first(), first_);
  for (const uint64_t first : {uint64_t{0}, stream_->ring().next() + 1, UINT64_MAX}) {
    EventPeerCounters counters;
    EventFeed feed = EventFeed::Replay(stream_.get(), &counters, first);
    RouterView replayed;
    const uint64_t next = stream_->ring().next();
    EXPECT_EQ(Apply(&feed, 0, &replayed), next - 1);
    EXPECT_EQ(stream_->ring().next(), next) << "other routers hear nothing of it";
    EXPECT_EQ(replayed.BlocksOf(kTopic), Listed()) << first;
    EXPECT_EQ(counters.snapshots, 1u);
  }
}

TEST_F(EventStreamTest, ARouterThatIsTooSlowGetsASnapshot) {
  EventsConfig format = Format();
  format.buffer_steps = 2;
  Open(format);
  WorkAll();
  EventPeerCounters counters;
  EventFeed feed = EventFeed::Live(stream_.get(), &counters);
  const uint64_t begun = stream_->ring().next();
  for (uint64_t stream = 0; stream < 8; ++stream) {
    Put(Sequence(stream, 2));
    WorkAll();
  }
  const uint64_t lost = stream_->ring().first() - begun;
  const uint64_t behind = stream_->ring().next() - 1;
  RouterView view;
  Apply(&feed, behind, &view);
  EXPECT_EQ(counters.lost, lost);
  EXPECT_EQ(view.BlocksOf(kTopic), Listed());
}

// As the indexer of Dynamo does.
TEST_F(EventStreamTest, ARouterThatDropsNumbersThatDoNotRiseLearnsAllBlocks) {
  Open();
  Put(Sequence(1, 4));
  WorkAll();
  EventPeerCounters counters;
  RouterView router;
  uint64_t last = 0;
  const auto follow = [&](EventFeed* feed) {
    while (const auto batch = feed->Next()) {
      if (batch->sequence <= last) continue;
      last = batch->sequence;
      router.Apply(*batch->topic, *batch->payload);
    }
    EXPECT_EQ(router.BlocksOf(kTopic), Listed());
  };
  // It comes late, it loses its connection and what happens meanwhile, it outlives the daemon.
  EventFeed feed = EventFeed::Live(stream_.get(), &counters);
  follow(&feed);
  Put(Sequence(2, 4));
  EvictFromPool();
  WorkAll();
  feed = EventFeed::Live(stream_.get(), &counters);
  follow(&feed);
  Put(Sequence(3, 4));
  Drain();
  Restart();
  feed = EventFeed::Live(stream_.get(), &counters);
  WorkAll();
  follow(&feed);
  EXPECT_FALSE(Listed().empty());
}

TEST_F(EventStreamTest, ARouterMissesNoNumberWhileAnotherGetsASnapshot) {
  Open();
  Put(Sequence(1, 4));
  WorkAll();
  EventPeerCounters counters;
  EventFeed first = EventFeed::Live(stream_.get(), &counters);
  RouterView view;
  uint64_t last = Apply(&first, 0, &view);
  EventFeed second = EventFeed::Live(stream_.get(), &counters);
  Put(Sequence(2, 4));
  WorkAll();
  last = Apply(&first, last, &view);
  EXPECT_EQ(last, stream_->ring().next() - 1);
  EXPECT_EQ(view.BlocksOf(kTopic), Listed());
  RouterView late;
  EXPECT_EQ(Apply(&second, 0, &late), last);
  EXPECT_EQ(late.topics(), view.topics());
}

TEST_F(EventStreamTest, ASnapshotTakesTheNumbersOfAllItsPartsThoughTheyMayBeEmpty) {
  Open();
  Put(Sequence(1, 8));
  Put(Sequence(2, 8));
  WorkAll();
  for (uint64_t block = 0; block < 8; ++block) {
    cache_->Evict({pool_.namespace_id, TestHash(1, block)}, std::nullopt);
  }
  WorkAll();
  EventPeerCounters counters;
  EventFeed feed = EventFeed::Replay(stream_.get(), &counters, 0);
  RouterView view;
  EXPECT_EQ(Apply(&feed, 0, &view), stream_->ring().next() - 1);
  EXPECT_EQ(view.BlocksOf(kTopic), Listed());
}

}  // namespace
}  // namespace kvtier
