// SPDX-License-Identifier: Apache-2.0
// The fakes keep the promises of what they stand for, and break them only on request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/fake_machine.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kSectors = 8;
constexpr uint64_t kBytes = kSectors * kIoAlignment;

TEST(FakeLoopTest, EventsRunInTheOrderPosted) {
  FakeLoop loop;
  const EventSource other = loop.AddSource(FakeLoop::Order::kAny);
  std::vector<int> order;
  loop.Post([&] { order.push_back(1); });
  loop.PostFrom(other, [&] { order.push_back(2); });
  loop.Post([&] { order.push_back(3); });
  EXPECT_EQ(loop.RunAll(), 3u);
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(FakeLoopTest, ShuffledLoopKeepsTheOrderOfAnOrderedSource) {
  FakeLoop loop;
  const EventSource ordered = loop.AddSource(FakeLoop::Order::kAsPosted);
  const EventSource free = loop.AddSource(FakeLoop::Order::kAny);
  loop.Shuffle(3);
  std::vector<int> of_ordered, of_free;
  for (int i = 0; i < 20; ++i) {
    loop.PostFrom(ordered, [&, i] { of_ordered.push_back(i); });
    loop.PostFrom(free, [&, i] { of_free.push_back(i); });
  }
  loop.RunAll();
  EXPECT_TRUE(std::ranges::is_sorted(of_ordered));
  EXPECT_FALSE(std::ranges::is_sorted(of_free));
}

TEST(FakeLoopTest, HeldSourceWaits) {
  FakeLoop loop;
  bool ran = false;
  loop.Post([&] { ran = true; });
  loop.Hold(FakeLoop::kPosted);
  EXPECT_EQ(loop.RunAll(), 0u);
  loop.LetGo(FakeLoop::kPosted);
  EXPECT_EQ(loop.RunAll(), 1u);
  EXPECT_TRUE(ran);
}

class FakeBlockFileTest : public ::testing::Test {
 protected:
  FakeBlockFileTest() : buffer_(kBytes, 0) {}

  void Fill(uint8_t value) { std::ranges::fill(buffer_.Slice(0, kBytes), std::byte{value}); }
  Status Write() {
    std::optional<Status> result;
    file_.Write(0, buffer_.Slice(0, kBytes), [&](Status status) { result = status; });
    loop_.RunAll();
    return result.value();
  }
  Status Sync() {
    std::optional<Status> result;
    file_.Sync([&](Status status) { result = status; });
    loop_.RunAll();
    return result.value();
  }
  Status Read() {
    std::optional<Status> result;
    file_.Read(0, buffer_.Slice(0, kBytes), [&](Status status) { result = status; });
    loop_.RunAll();
    return result.value();
  }
  // How many sectors at rest are filled with `value`.
  size_t SectorsOf(uint8_t value) {
    size_t count = 0;
    for (uint64_t at = 0; at < kBytes; at += kIoAlignment) {
      const auto sector = file_.contents().subspan(at, kIoAlignment);
      count += std::ranges::count(sector, std::byte{value}) == kIoAlignment;
    }
    return count;
  }

  FakeLoop loop_;
  FakeBlockFile file_{&loop_, kBytes, 5};
  AlignedBytes buffer_;
};

TEST_F(FakeBlockFileTest, WhatWasWrittenIsRead) {
  Fill(7);
  ASSERT_TRUE(Write());
  Fill(0);
  ASSERT_TRUE(Read());
  EXPECT_EQ(std::ranges::count(buffer_.Slice(0, kBytes), std::byte{7}), kBytes);
}

TEST_F(FakeBlockFileTest, SyncedWriteSurvivesACrash) {
  Fill(7);
  ASSERT_TRUE(Write());
  ASSERT_TRUE(Sync());
  file_.Crash();
  EXPECT_EQ(SectorsOf(7), kSectors);
}

TEST_F(FakeBlockFileTest, UnsyncedWriteMayBeLostInPart) {
  Fill(7);
  ASSERT_TRUE(Write());
  file_.Crash();
  EXPECT_LT(SectorsOf(7), kSectors);
  EXPECT_EQ(SectorsOf(7) + SectorsOf(0), kSectors);
}

TEST_F(FakeBlockFileTest, SyncCoversOnlyWhatWasDoneBefore) {
  Fill(7);
  ASSERT_TRUE(Write());
  file_.Sync([](const Status&) {});
  Fill(8);
  file_.Write(0, buffer_.Slice(0, kBytes), [](const Status&) {});
  loop_.RunAll();
  file_.Crash();
  EXPECT_GT(SectorsOf(7), 0u);
  EXPECT_EQ(SectorsOf(7) + SectorsOf(8), kSectors);
}

TEST_F(FakeBlockFileTest, FailedSyncMakesNothingDurable) {
  Fill(7);
  ASSERT_TRUE(Write());
  file_.FailNextSyncs(1);
  EXPECT_FALSE(Sync());
  file_.Crash();
  EXPECT_LT(SectorsOf(7), kSectors);
}

TEST_F(FakeBlockFileTest, TornWriteIsReportedDoneButIsNotWhole) {
  Fill(7);
  file_.ScriptWrites({WriteFault::kTorn});
  EXPECT_TRUE(Write());
  EXPECT_LT(SectorsOf(7), kSectors);
}

TEST_F(FakeBlockFileTest, FailedWriteNamesItsErrno) {
  file_.ScriptWrites({WriteFault::kEnospc});
  const Status status = Write();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().reason, "ENOSPC");
}

TEST_F(FakeBlockFileTest, FlippedReadLeavesTheFileIntact) {
  Fill(7);
  ASSERT_TRUE(Write());
  file_.ScriptReads({ReadFault::kFlipped});
  ASSERT_TRUE(Read());
  EXPECT_EQ(std::ranges::count(buffer_.Slice(0, kBytes), std::byte{7}), kBytes - 1);
  EXPECT_EQ(SectorsOf(7), kSectors);
}

IndexBatch BatchOf(uint64_t position) {
  IndexBatch batch;
  batch.puts.push_back({.key = {NamespaceId(0), TestHash(1, position)}});
  return batch;
}

TEST(FakeIndexTest, AcknowledgedBatchSurvivesACrash) {
  FakeLoop loop;
  FakeIndex index(&loop, 1);
  index.Apply(BatchOf(0), [](const Status&) {});
  loop.RunAll();
  index.Crash();
  EXPECT_EQ(index.Snapshot().records.size(), 1u);
}

TEST(FakeIndexTest, CrashKeepsAPrefixOfWhatWasUnderWay) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    FakeLoop loop;
    FakeIndex index(&loop, seed);
    for (uint64_t i = 0; i < 4; ++i) index.Apply(BatchOf(i), [](const Status&) {});
    index.Crash();
    const size_t kept = index.Snapshot().records.size();
    for (size_t i = 0; i < kept; ++i) {
      EXPECT_TRUE(std::ranges::any_of(index.Snapshot().records, [&](const IndexRecord& record) {
        return record.key.hash == TestHash(1, i);
      }));
    }
  }
}

TEST(FakeIndexTest, DamagedLogForgetsAcknowledgedBatches) {
  FakeLoop loop;
  FakeIndex index(&loop, 1);
  for (uint64_t i = 0; i < 4; ++i) index.Apply(BatchOf(i), [](const Status&) {});
  loop.RunAll();
  index.LoseTail(3);
  EXPECT_EQ(index.Snapshot().records.size(), 1u);
}

TEST(FakeDeviceTest, DestinationIsGarbageUntilTheCopyCompletes) {
  FakeLoop loop;
  FakeDevice device(&loop, kMiB, 1);
  const auto pool = device.CreatePool(kIoAlignment).value();
  AlignedBytes host(kIoAlignment, 7);
  device.Copy({.pool = pool.get(),
               .direction = CopyDirection::kHostToPool,
               .copies = {{0, host.data(), kIoAlignment}},
               .done = [](const Status& status) { EXPECT_TRUE(status); }});
  const std::byte* const memory = device.PoolByFd(pool->shareable_fd())->data();
  EXPECT_NE(memory[0], std::byte{7});
  loop.RunAll();
  EXPECT_EQ(memory[0], std::byte{7});
}

TEST(FakeDeviceTest, MemoryBeyondTheDeviceIsRefused) {
  FakeLoop loop;
  FakeDevice device(&loop, kMiB, 1);
  const auto pool = device.CreatePool(kMiB);
  EXPECT_TRUE(pool);
  EXPECT_FALSE(device.CreatePool(1));
}

}  // namespace
}  // namespace kvtier
