// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/index_start.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/full_disk.h"
#include "tests/unit/tiers/disk_fixture.h"

namespace kvtier {
namespace {

class IndexStartTest : public DiskTest {
 protected:
  // One whole start of a daemon, up to the index.
  StartedIndex Start() { return StartOn(OpenFiles()); }
  StartedIndex StartOn(const DiskFiles& files) {
    auto started = StartIndex(directories_, files, Options(), &loop_);
    EXPECT_TRUE(started) << started.error().ToString();
    return started ? *std::move(started) : StartedIndex{};
  }

  Status TryApply(const StartedIndex& started, IndexBatch batch) {
    std::optional<Status> outcome;
    started.index->Apply(std::move(batch), [&](const Status& status) { outcome = status; });
    loop_.RunUntil([&] { return outcome.has_value(); });
    return *outcome;
  }
  void Apply(const StartedIndex& started, IndexBatch batch) {
    EXPECT_TRUE(TryApply(started, std::move(batch)));
  }
};

TEST_F(IndexStartTest, ANewDiskGetsAnEmptyIndexThatTheNextStartFindsGood) {
  const StartedIndex first = Start();
  EXPECT_EQ(first.found, IndexState::kMissing);
  EXPECT_TRUE(first.snapshot.records.empty());
}

TEST_F(IndexStartTest, WhatWasAppliedIsThereAtTheNextStart) {
  const std::vector<DiskBlock> blocks = Fill(3);
  {
    std::filesystem::remove_all(directory_ / "index");
    const StartedIndex started = Start();
    ASSERT_TRUE(started.index);
    Apply(started, {.deletes = {blocks[1].record.key}});
  }
  const StartedIndex started = Start();
  EXPECT_EQ(started.found, IndexState::kGood);
  EXPECT_FALSE(started.rebuilt);
  ExpectSameContents(started.snapshot, SnapshotOf({blocks[0], blocks[2]}));
}

TEST_F(IndexStartTest, AMissingIndexIsRebuiltFromTheHeaders) {
  const std::vector<DiskBlock> blocks = Fill(20);
  const StartedIndex started = Start();
  EXPECT_EQ(started.found, IndexState::kMissing);
  ASSERT_TRUE(started.rebuilt);
  EXPECT_EQ(started.rebuilt->slabs, kSlabs);
  ExpectSameContents(started.snapshot, SnapshotOf(blocks));
}

TEST_F(IndexStartTest, ADamagedIndexIsRebuiltFromTheHeaders) {
  const std::vector<DiskBlock> blocks = Fill(20);
  WriteIndex({});
  std::ofstream(directory_ / "index" / "CURRENT") << "nonsense";
  const StartedIndex started = Start();
  EXPECT_EQ(started.found, IndexState::kDamaged);
  EXPECT_FALSE(started.found_detail.empty());
  ExpectSameContents(started.snapshot, SnapshotOf(blocks));
}

TEST_F(IndexStartTest, AnIndexFromABackupIsRebuiltFromTheHeaders) {
  const std::vector<DiskBlock> blocks = Fill(20);
  Start();
  std::filesystem::copy(directory_ / "index", temporary_.path() / "backup",
                        std::filesystem::copy_options::recursive);
  {
    const StartedIndex started = Start();
    ASSERT_TRUE(started.index);
    Apply(started, {.deletes = {blocks[0].record.key}});
  }
  std::filesystem::remove_all(directory_ / "index");
  std::filesystem::rename(temporary_.path() / "backup", directory_ / "index");
  EXPECT_EQ(Start().found, IndexState::kStaleEpoch);
  EXPECT_EQ(Start().found, IndexState::kGood);
}

TEST_F(IndexStartTest, AnIndexOfOtherFilesIsRebuiltFromTheHeaders) {
  Fill(20);
  Start();
  std::filesystem::remove(FilePath(0));
  std::filesystem::remove(FilePath(1));
  const StartedIndex started = Start();
  EXPECT_EQ(started.found, IndexState::kOtherFiles);
  EXPECT_TRUE(started.snapshot.records.empty());
}

TEST_F(IndexStartTest, DistrustOutlivesTheIndexAndOneOfTheDrivesUntilItIsForgiven) {
  const std::vector<DiskBlock> blocks = Fill(3);
  const NamespaceIdentity theirs{
      .tenant = "a tenant", .model = ModelFingerprint{{9}}, .block_bytes = 64};
  {
    const StartedIndex started = Start();
    Apply(started, {.namespaces = {{NamespaceId(7), theirs}}, .distrusted = {NamespaceId(7)}});
  }
  std::filesystem::remove_all(directories_[0] / "index");
  std::filesystem::remove(directories_[0] / "distrusted");
  std::ofstream(directories_[1] / "distrusted", std::ios::app)
      << ModelFingerprint{{8}}.Hex() << " 64 " << std::string(kMaxTenantBytes + 1, 't') << "\n"
      << ModelFingerprint{{8}}.Hex() << " 0 t\n"
      << ModelFingerprint{{8}}.Hex() << " " << kMaxPayloadBytes + 1 << " t\n";
  {
    const StartedIndex started = Start();
    ASSERT_TRUE(started.rebuilt);
    EXPECT_EQ(started.snapshot.records.size(), blocks.size());
    EXPECT_EQ(started.damaged_marks, 3u);
    ASSERT_EQ(started.snapshot.distrusted.size(), 1u);
    const NamespaceId id = started.snapshot.distrusted[0];
    EXPECT_EQ(std::ranges::count(started.snapshot.namespaces, std::pair(id, theirs)), 1);
    Apply(started, {.trusted = {id}});
  }
  for (const auto& directory : directories_) std::filesystem::remove_all(directory / "index");
  EXPECT_TRUE(Start().snapshot.distrusted.empty());
}

// A tenant can have very many of its models distrusted.
TEST_F(IndexStartTest, DistrustOfEightTimesAsManyTakesNotFarLongerThanEightTimes) {
  const auto processor_time = [this](uint32_t models) {
    std::vector<NamespaceIdentity> theirs(models, {.tenant = "t", .model = {}, .block_bytes = 64});
    for (uint32_t i = 0; i < models; ++i) {
      std::memcpy(theirs[i].model.bytes.data(), &i, sizeof(i));
    }
    std::filesystem::remove_all(directories_[0] / "index");
    for (const auto& directory : directories_) {
      EXPECT_TRUE(DistrustMark::Write(directory, theirs));
    }
    const std::clock_t start = std::clock();
    EXPECT_EQ(Start().snapshot.distrusted.size(), models);
    return std::clock() - start;
  };
  const std::clock_t few = processor_time(4'000);
  EXPECT_LT(processor_time(32'000), 25 * few);
}

TEST_F(IndexStartTest, AnErasureThatBeganWithoutTheDriveOfTheIndexIsKnownWhenThatIsBack) {
  Fill(6);
  Start();
  const auto with_index = directories_[0];
  const auto away = with_index.string() + ".away";
  const ErasureRecord erasure{
      .number = 1, .tenant = "a tenant", .end_hour = UINT32_MAX, .begun_s = 5};
  std::filesystem::rename(with_index, away);
  {
    const auto files = OpenDiskFiles({.directories = directories_,
                                      .bytes = kFiles * kFirstSlabOffset + kSlabs * kSlabBytes,
                                      .slab_bytes = kSlabBytes,
                                      .engine = DiskEngine::kPread},
                                     &loop_);
    ASSERT_TRUE(files) << files.error().ToString();
    Apply(StartOn(*files), {.erasures = {erasure}});
  }
  std::filesystem::rename(away, with_index);
  {
    const StartedIndex started = Start();
    ASSERT_EQ(started.found, IndexState::kStaleEpoch);
    ASSERT_EQ(started.snapshot.erasures.size(), 1u);
    const ErasureRecord& known = started.snapshot.erasures[0];
    EXPECT_EQ(known.tenant, erasure.tenant);
    EXPECT_EQ(known.end_hour, erasure.end_hour);
    EXPECT_EQ(known.begun_s, erasure.begun_s);
    Apply(started, {.ended_erasures = {known.number}});
  }
  for (const auto& directory : directories_) std::filesystem::remove_all(directory / "index");
  EXPECT_TRUE(Start().snapshot.erasures.empty());
}

// One whose text still reads like a record would otherwise erase, or distrust, another's blocks.
TEST_F(IndexStartTest, AFlippedBitInAMarkIsToldAndTheOtherDriveKnowsTheRecord) {
  const NamespaceIdentity theirs{.tenant = "t0", .model = ModelFingerprint{{9}}, .block_bytes = 64};
  const ErasureRecord erasure{.tenant = "t0", .end_hour = 7, .begun_s = 5};
  Fill(3);
  Apply(Start(), {.namespaces = {{NamespaceId(7), theirs}},
                  .erasures = {erasure},
                  .distrusted = {NamespaceId(7)}});
  const auto flip_and_start = [this](const std::filesystem::path& drive) {
    std::filesystem::remove_all(directories_[0] / "index");
    for (const char* name : {"distrusted", "erasures"}) {
      std::fstream file(drive / name);
      file.seekp(-2, std::ios::end);
      file.put('1');
    }
    return Start();
  };
  {
    const StartedIndex started = flip_and_start(directories_[1]);
    EXPECT_EQ(started.damaged_marks, 2u);
    EXPECT_EQ(started.snapshot.distrusted.size(), 1u);
    ASSERT_EQ(started.snapshot.erasures.size(), 1u);
    EXPECT_EQ(started.snapshot.erasures[0].tenant, "t0");
  }
  std::filesystem::remove(directories_[1] / "distrusted");
  std::filesystem::remove(directories_[1] / "erasures");
  const StartedIndex started = flip_and_start(directories_[0]);
  EXPECT_EQ(started.damaged_marks, 2u);
  EXPECT_TRUE(started.snapshot.distrusted.empty());
  EXPECT_TRUE(started.snapshot.erasures.empty());
}

TEST_F(IndexStartTest, AMarkThatCannotBeOpenedIsTold) {
  Fill(3);
  Start();
  std::filesystem::remove_all(directories_[0] / "index");
  std::filesystem::create_symlink("erasures", directories_[1] / "erasures");
  EXPECT_EQ(Start().damaged_marks, 1u);
}

TEST_F(IndexStartTest, APipeInTheMarksPlacesHoldsUpNoStart) {
  Fill(3);
  Start();
  std::filesystem::remove_all(directories_[0] / "index");
  for (const char* const name : {"erasures", "distrusted", "index.epoch"}) {
    std::filesystem::remove(directories_[1] / name);
    ASSERT_EQ(::mkfifo((directories_[1] / name).c_str(), 0600), 0);
  }
  EXPECT_EQ(Start().damaged_marks, 2u);
}

TEST_F(IndexStartTest, LinesOfMarksWithoutAChecksumAreReadAsBefore) {
  Fill(3);
  Start();
  std::filesystem::remove_all(directories_[0] / "index");
  std::ofstream(directories_[1] / "distrusted") << ModelFingerprint{{8}}.Hex() << " 64 a tenant\n";
  std::ofstream(directories_[1] / "erasures") << "7 5 a tenant\n";
  const StartedIndex started = Start();
  EXPECT_EQ(started.damaged_marks, 0u);
  EXPECT_EQ(started.snapshot.distrusted.size(), 1u);
  ASSERT_EQ(started.snapshot.erasures.size(), 1u);
  EXPECT_EQ(started.snapshot.erasures[0].tenant, "a tenant");
}

TEST_F(IndexStartTest, StartsThatDiedBeforeTheIndexLoseNothing) {
  const std::vector<DiskBlock> blocks = Fill(20);
  Start();
  for (int i = 0; i < 3; ++i) OpenFiles();
  const StartedIndex started = Start();
  EXPECT_EQ(started.found, IndexState::kGood);
  ExpectSameContents(started.snapshot, SnapshotOf(blocks));
}

TEST_F(IndexStartTest, ARebuiltIndexThatFindsNoRoomServesAndIsWrittenAsSoonAsThereIs) {
  const std::vector<DiskBlock> blocks = Fill(20);
  WriteIndex({});
  std::ofstream(directory_ / "index" / "CURRENT") << "nonsense";
  {
    const DiskFiles files = OpenFiles();
    StartedIndex started;
    {
      const FullDisk full;
      auto found = StartIndex(directories_, files, Options(), &loop_);
      ASSERT_TRUE(found) << found.error().ToString();
      started = *std::move(found);
      EXPECT_TRUE(started.unwritten);
      ExpectSameContents(started.snapshot, SnapshotOf(blocks));
      EXPECT_FALSE(TryApply(started, {.deletes = {blocks[0].record.key}}));
    }
    // It is tried again after a while.
    while (!TryApply(started, {})) {
    }
    Apply(started, {.deletes = {blocks[1].record.key}});
  }
  const StartedIndex started = Start();
  EXPECT_EQ(started.found, IndexState::kGood);
  std::vector<DiskBlock> left = blocks;
  left.erase(left.begin() + 1);
  ExpectSameContents(started.snapshot, SnapshotOf(left));
}

TEST_F(IndexStartTest, ARebuiltIndexThatWasNeverWrittenIsRebuiltByTheNextStart) {
  const std::vector<DiskBlock> blocks = Fill(20);
  {
    const DiskFiles files = OpenFiles();
    const FullDisk full;
    ASSERT_TRUE(StartIndex(directories_, files, Options(), &loop_)->unwritten);
  }
  const StartedIndex started = Start();
  EXPECT_EQ(started.found, IndexState::kMissing);
  EXPECT_FALSE(started.unwritten);
  ExpectSameContents(started.snapshot, SnapshotOf(blocks));
}

TEST_F(IndexStartTest, AnIndexThatIsInUseIsAnError) {
  const DiskFiles files = OpenFiles();
  const auto first = StartIndex(directories_, files, Options(), &loop_);
  ASSERT_TRUE(first) << first.error().ToString();
  const auto second = StartIndex(directories_, files, Options(), &loop_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().reason, "index_locked");
}

}  // namespace
}  // namespace kvtier
