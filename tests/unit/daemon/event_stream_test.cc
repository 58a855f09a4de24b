// SPDX-License-Identifier: Apache-2.0
// A router that knows events alone agrees with the cache.
#include "daemon/events/event_stream.h"

#include <gtest/gtest.h>

#include "daemon/events/event_feed.h"
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
    MakeStream(Format());
    setup_.events = stream_.get();
    DieAndAdopt();
    stream_->SetCache(cache_.get());
  }
  void MakeStream(const EventsConfig& format) {
    changes_ = 0;
    stream_ = std::make_unique<EventStream>(
        format, &clock_,
        [this](const NamespaceIdentity&) -> std::optional<EventStream::Name> {
          if (!named_) return std::nullopt;
          return EventStream::Name{.model = "model", .group = std::nullopt};
        },
        [this] { ++changes_; }, /*rows_per_step=*/8);
    view_ = {};
    read_ = 0;
  }
  void WorkAll() {
    while (stream_->Work()) {
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

  SystemClock clock_;
  bool named_ = true;
  uint64_t changes_ = 0;
  std::unique_ptr<EventStream> stream_;
  RouterView view_;
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
  EXPECT_EQ(stream_->ring().next(), 0u);
  named_ = true;
  ExpectViewIsTheListing();
  EXPECT_GE(view_.BlocksOf(kTopic).size(), 4u);
}

TEST_F(EventStreamTest, SaysNothingOfTenantsThatAreNotNamed) {
  EventsConfig format = Format();
  format.tenants.clear();
  Open(format);
  Put(Sequence(1, 4));
  WorkAll();
  EXPECT_EQ(stream_->ring().next(), 0u);
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
    EventFeed feed = EventFeed::Live(stream_.get(), &counters);
    const uint64_t begun = stream_->ring().next();
    std::optional<PublishedBatch> batch = feed.Next();
    for (; batch; batch = feed.Next()) {
      if (batch->payload == nullptr) continue;
      EXPECT_GE(batch->sequence + 1, begun);
      late.Apply(*batch->topic, *batch->payload);
      if (random.Chance(0.5)) RandomStep(&random);
      if (random.Chance(0.3)) stream_->Work();
    }
    machine_->loop.RunAll();
    WorkAll();
    while ((batch = feed.Next())) late.Apply(*batch->topic, *batch->payload);
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
  EventFeed feed = EventFeed::Replay(stream_.get(), &counters, 0);
  RouterView replayed;
  uint64_t expected = 0;
  while (const auto batch = feed.Next()) {
    EXPECT_EQ(batch->sequence, expected++);
    replayed.Apply(*batch->topic, *batch->payload);
  }
  EXPECT_EQ(expected, stream_->ring().next());
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
  ASSERT_GT(stream_->ring().first(), 0u);
  for (const uint64_t first : {uint64_t{0}, stream_->ring().next() + 1, UINT64_MAX}) {
    EventPeerCounters counters;
    EventFeed feed = EventFeed::Replay(stream_.get(), &counters, first);
    RouterView replayed;
    while (const auto batch = feed.Next()) {
      if (batch->payload) replayed.Apply(*batch->topic, *batch->payload);
    }
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
  RouterView view;
  while (const auto next = feed.Next()) {
    if (next->payload) view.Apply(*next->topic, *next->payload);
  }
  EXPECT_EQ(counters.lost, stream_->ring().first() - begun);
  EXPECT_EQ(view.BlocksOf(kTopic), Listed());
}

}  // namespace
}  // namespace kvtier
