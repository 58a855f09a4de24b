// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/rocksdb_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/result.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/full_disk.h"
#include "tests/fakes/temporary_directory.h"
#include "tiers/index/rocksdb_status.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

NamespaceIdentity Identity(const std::string& tenant) {
  return {.tenant = tenant, .model = TestHash(100, 0), .block_bytes = 64 << 10};
}

IndexRecord Record(uint32_t name_space, uint64_t number) {
  return {.key = {NamespaceId(name_space), TestHash(name_space, number)},
          .location = DiskLocation{4096 + number * (68 << 10)},
          .generation = static_cast<uint32_t>(number) + 1,
          .depth = static_cast<uint32_t>(number % 1000),
          .created_s = 1'748'736'000,
          .last_use_s = 1'748'736'000 + static_cast<uint32_t>(number % 86'400),
          .tokens = 16,
          .verified = number % 3 != 0};
}

IndexSnapshot SnapshotOf(uint64_t records) {
  IndexSnapshot snapshot;
  snapshot.namespaces = {{NamespaceId(0), Identity("uid:0")}, {NamespaceId(1), Identity("uid:1")}};
  for (uint64_t i = 0; i < records; ++i) snapshot.records.push_back(Record(i % 2, i));
  snapshot.budget = {.day = 20'240, .spent_bytes = 12345};
  snapshot.erasures = {{.number = 3, .tenant = "uid:9", .end_hour = 7, .begun_s = 8}};
  return snapshot;
}

using Fields = std::tuple<uint32_t, BlockHash, uint64_t, uint32_t, uint32_t, uint32_t, uint32_t,
                          uint16_t, RetentionClass, bool>;

// All fields of all records, in one order.
std::vector<Fields> Sorted(const std::vector<IndexRecord>& records) {
  std::vector<Fields> sorted;
  for (const IndexRecord& r : records) {
    sorted.emplace_back(r.key.namespace_id.value, r.key.hash, r.location.offset, r.generation,
                        r.depth, r.created_s, r.last_use_s, r.tokens, r.retention, r.verified);
  }
  std::ranges::sort(sorted);
  return sorted;
}

void ExpectSame(const IndexSnapshot& a, const IndexSnapshot& b) {
  EXPECT_EQ(a.namespaces, b.namespaces);
  EXPECT_TRUE(Sorted(a.records) == Sorted(b.records));
  EXPECT_EQ(a.budget, b.budget);
  EXPECT_EQ(a.erasures, b.erasures);
}

class RocksdbIndexTest : public ::testing::Test {
 protected:
  RocksdbIndexTest()
      : place_{.index = directory_.path() / "index", .files = directory_.path() / "files"} {
    fs::create_directory(place_.files);
    files_.bytes.fill(0x5A);
  }

  [[nodiscard]] IndexMeta Start(uint64_t epoch) const { return {files_, epoch}; }

  void Replace(const IndexSnapshot& snapshot, uint64_t epoch = 1) {
    const Status status = RocksdbIndex::Replace(place_, Start(epoch), snapshot);
    ASSERT_TRUE(status) << status.error().ToString();
  }

  OpenedIndex Open(uint64_t epoch) {
    auto opened = RocksdbIndex::Open(place_, Start(epoch), &loop_);
    EXPECT_TRUE(opened) << opened.error().ToString();
    if (!opened) return {};
    EXPECT_EQ(opened->index != nullptr, opened->contents.state == IndexState::kGood);
    return *std::move(opened);
  }

  IndexState StateAt(uint64_t epoch) { return Open(epoch).contents.state; }

  // The contents that a start finds in a copy of `index`: an opening changes the files.
  IndexContents ContentsOf(const fs::path& index, uint64_t epoch) {
    const TestDirectory copy;
    const IndexPlace place{.index = copy.path() / "index", .files = copy.path() / "files"};
    fs::copy(index, place.index, fs::copy_options::recursive);
    fs::copy(place_.files, place.files, fs::copy_options::recursive);
    auto opened = RocksdbIndex::Open(place, Start(epoch), &loop_);
    EXPECT_TRUE(opened) << opened.error().ToString();
    return opened ? std::move(opened->contents) : IndexContents{};
  }

  // Applies all, then runs until each is done.
  void ApplyAll(RocksdbIndex* index, std::vector<IndexBatch> batches) {
    size_t done = 0;
    const size_t all = batches.size();
    for (IndexBatch& batch : batches) {
      index->Apply(std::move(batch), [&](const Status& status) {
        EXPECT_TRUE(status) << status.error().ToString();
        ++done;
      });
    }
    loop_.RunUntil([&] { return done == all; });
  }

  [[nodiscard]] std::vector<fs::path> FilesOf(const std::string& extension) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(place_.index)) {
      if (entry.path().extension() == extension) found.push_back(entry.path());
    }
    return found;
  }

  TestDirectory directory_;
  BlockingLoop loop_;
  const IndexPlace place_;
  Digest128 files_;
};

void FlipByte(const fs::path& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x40));
  ASSERT_TRUE(file.good()) << path;
}

TEST_F(RocksdbIndexTest, GivesBackExactlyWhatReplaceWasGiven) {
  const IndexSnapshot snapshot = SnapshotOf(1000);
  Replace(snapshot);
  ExpectSame(Open(1).contents.snapshot, snapshot);
}

TokensRecord TokensOf(uint64_t number) {
  std::vector<uint32_t> ids(16);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(0xABCD0000 + number + i);
  return {.key = Record(0, number).key, .ids = BytesOfTokenIds(ids)};
}

TEST_F(RocksdbIndexTest, TokenIdsAreThereAfterReopeningUnlessTheyWereDeleted) {
  IndexSnapshot snapshot = SnapshotOf(4);
  snapshot.tokens = {TokensOf(0)};
  Replace(snapshot);
  {
    const OpenedIndex opened = Open(1);
    ASSERT_TRUE(opened.index);
    ApplyAll(opened.index.get(),
             {{.token_puts = {TokensOf(1), TokensOf(2)}},
              // The deletes first, then the puts.
              {.token_puts = {TokensOf(2)}, .token_deletes = {TokensOf(1).key, TokensOf(2).key}}});
  }
  const IndexSnapshot found = Open(2).contents.snapshot;
  ExpectSame(found, snapshot);
  std::map<BlockHash, std::vector<std::byte>> tokens;
  for (const TokensRecord& record : found.tokens) tokens[record.key.hash] = record.ids;
  EXPECT_EQ(tokens,
            (std::map<BlockHash, std::vector<std::byte>>{{TokensOf(0).key.hash, TokensOf(0).ids},
                                                         {TokensOf(2).key.hash, TokensOf(2).ids}}));
}

TEST_F(RocksdbIndexTest, APurgeLeavesNoByteOfDeletedTokenIdsInItsFiles) {
  const auto lies_there = [&](const std::vector<std::byte>& bytes) {
    const std::string what(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return std::ranges::any_of(fs::directory_iterator(place_.index), [&](const auto& entry) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      return text.find(what) != std::string::npos;
    });
  };
  Replace(SnapshotOf(4));
  const OpenedIndex opened = Open(1);
  ASSERT_TRUE(opened.index);
  ApplyAll(opened.index.get(), {{.token_puts = {TokensOf(1), TokensOf(2)}}});
  ASSERT_TRUE(lies_there(TokensOf(1).ids));
  ApplyAll(opened.index.get(), {{.token_deletes = {TokensOf(1).key}}});
  ApplyAll(opened.index.get(), {{.purge_tokens = true}});
  EXPECT_FALSE(lies_there(TokensOf(1).ids));
  EXPECT_TRUE(lies_there(TokensOf(2).ids));
}

TEST_F(RocksdbIndexTest, AnEmptyIndexIsGood) {
  Replace({});
  const OpenedIndex opened = Open(1);
  EXPECT_EQ(opened.contents.state, IndexState::kGood);
  EXPECT_TRUE(opened.contents.snapshot.records.empty());
}

TEST_F(RocksdbIndexTest, BatchesAreThereAfterReopening) {
  Replace(SnapshotOf(0));
  IndexRecord moved = Record(0, 5);
  moved.location = DiskLocation{1 << 30};
  {
    const OpenedIndex opened = Open(1);
    IndexBatch first{.namespaces = {{NamespaceId(7), Identity("uid:7")}}, .puts = {Record(7, 1)}};
    IndexBatch second{.puts = {Record(0, 5), Record(0, 6)}};
    IndexBatch third{.puts = {moved}, .deletes = {Record(0, 5).key, Record(0, 6).key}};
    third.budget = WriteBudgetState{.day = 3, .spent_bytes = 9};
    third.erasures = {{.number = 300, .tenant = "uid:7", .end_hour = 1, .begun_s = 2}};
    third.ended_erasures = {3};
    ApplyAll(opened.index.get(), {first, second, third});
  }
  IndexSnapshot expected = SnapshotOf(0);
  expected.namespaces.emplace_back(NamespaceId(7), Identity("uid:7"));
  expected.records = {Record(7, 1), moved};
  expected.budget = {.day = 3, .spent_bytes = 9};
  expected.erasures = {{.number = 300, .tenant = "uid:7", .end_hour = 1, .begun_s = 2}};
  ExpectSame(Open(2).contents.snapshot, expected);
}

TEST_F(RocksdbIndexTest, CallbacksComeInCallOrder) {
  Replace(SnapshotOf(0));
  const OpenedIndex opened = Open(1);
  std::vector<int> order;
  for (int i = 0; i < 500; ++i) {
    opened.index->Apply({.puts = {Record(0, static_cast<uint64_t>(i))}},
                        [&order, i](const Status&) { order.push_back(i); });
  }
  loop_.RunUntil([&] { return order.size() == 500; });
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST_F(RocksdbIndexTest, DestructionFinishesWhatIsQueued) {
  Replace(SnapshotOf(0));
  size_t done = 0;
  {
    const OpenedIndex opened = Open(1);
    for (uint64_t i = 0; i < 200; ++i) {
      opened.index->Apply({.puts = {Record(1, i)}}, [&](const Status& s) { done += s ? 1 : 0; });
    }
  }
  loop_.RunPosted();
  EXPECT_EQ(done, 200u);
  EXPECT_EQ(Open(2).contents.snapshot.records.size(), 200u);
}

TEST_F(RocksdbIndexTest, LoadsAHundredThousandRecordsAsWritten) {
  const IndexSnapshot snapshot = SnapshotOf(100'000);
  Replace(snapshot);
  ExpectSame(Open(1).contents.snapshot, snapshot);
}

TEST_F(RocksdbIndexTest, MissingDirectoryIsMissing) {
  EXPECT_EQ(StateAt(1), IndexState::kMissing);
  fs::create_directory(place_.index);
  EXPECT_EQ(StateAt(1), IndexState::kMissing);
}

TEST_F(RocksdbIndexTest, AnotherFileSetIsNotServed) {
  Replace(SnapshotOf(10));
  files_.bytes[15] ^= 1;
  const OpenedIndex opened = Open(1);
  EXPECT_EQ(opened.contents.state, IndexState::kOtherFiles);
  EXPECT_TRUE(opened.contents.snapshot.records.empty());
}

TEST_F(RocksdbIndexTest, EachStartFindsTheIndexGood) {
  Replace(SnapshotOf(10));
  for (uint64_t epoch = 1; epoch < 5; ++epoch) EXPECT_EQ(StateAt(epoch), IndexState::kGood);
}

TEST_F(RocksdbIndexTest, StartsThatEndedBeforeTheIndexWasOpenedLoseNothing) {
  Replace(SnapshotOf(10));
  EXPECT_EQ(StateAt(1), IndexState::kGood);
  // The files began starts 2 to 8, each of which died before it came to the index.
  EXPECT_EQ(StateAt(9), IndexState::kGood);
}

TEST_F(RocksdbIndexTest, AStartThatEndedBetweenIndexAndMarkLosesNothing) {
  Replace(SnapshotOf(10));
  EXPECT_EQ(StateAt(1), IndexState::kGood);
  const fs::path mark = place_.files / "index.epoch";
  fs::copy_file(mark, directory_.path() / "kept");
  EXPECT_EQ(StateAt(2), IndexState::kGood);
  fs::copy_file(directory_.path() / "kept", mark, fs::copy_options::overwrite_existing);
  EXPECT_EQ(StateAt(3), IndexState::kGood);
}

TEST_F(RocksdbIndexTest, AnIndexFromABackupIsStale) {
  Replace(SnapshotOf(10));
  EXPECT_EQ(StateAt(1), IndexState::kGood);
  fs::copy(place_.index, directory_.path() / "backup", fs::copy_options::recursive);
  EXPECT_EQ(StateAt(2), IndexState::kGood);
  fs::remove_all(place_.index);
  fs::rename(directory_.path() / "backup", place_.index);
  const OpenedIndex opened = Open(3);
  EXPECT_EQ(opened.contents.state, IndexState::kStaleEpoch);
  EXPECT_THAT(opened.contents.detail, HasSubstr("start 1"));
  // Nor does trying again make it good.
  EXPECT_EQ(StateAt(4), IndexState::kStaleEpoch);
}

TEST_F(RocksdbIndexTest, FilesFromABackupMakeTheIndexStale) {
  Replace(SnapshotOf(10));
  EXPECT_EQ(StateAt(5), IndexState::kGood);
  // The files, and the mark with them, are those of start 3 again, which this start counts on.
  std::ofstream(place_.files / "index.epoch") << "3\n";
  EXPECT_EQ(StateAt(4), IndexState::kStaleEpoch);
  EXPECT_EQ(StateAt(5), IndexState::kStaleEpoch);
}

TEST_F(RocksdbIndexTest, ReplaceCuresAStaleIndexWithinTheSameStart) {
  Replace(SnapshotOf(10));
  EXPECT_EQ(StateAt(5), IndexState::kGood);
  EXPECT_EQ(StateAt(4), IndexState::kStaleEpoch);
  Replace(SnapshotOf(20), 4);
  const OpenedIndex opened = Open(4);
  EXPECT_EQ(opened.contents.snapshot.records.size(), 20u);
}

TEST_F(RocksdbIndexTest, ASecondOpeningIsRefused) {
  Replace(SnapshotOf(10));
  const OpenedIndex opened = Open(1);
  const auto second = RocksdbIndex::Open(place_, Start(2), &loop_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(second.error().reason, "index_locked");
}

TEST_F(RocksdbIndexTest, AnyFlippedByteOfATableIsDamageOrChangesNothing) {
  const IndexSnapshot snapshot = SnapshotOf(300);
  Replace(snapshot);
  const std::vector<fs::path> tables = FilesOf(".sst");
  ASSERT_EQ(tables.size(), 1u);
  const uint64_t bytes = fs::file_size(tables[0]);
  int damaged = 0;
  for (uint64_t offset = 0; offset < bytes; offset += bytes / 97) {
    FlipByte(tables[0], offset);
    const IndexContents contents = ContentsOf(place_.index, 1);
    if (contents.state == IndexState::kGood) {
      ExpectSame(contents.snapshot, snapshot);
    } else {
      EXPECT_EQ(contents.state, IndexState::kDamaged);
      EXPECT_FALSE(contents.detail.empty());
      ++damaged;
    }
    FlipByte(tables[0], offset);
  }
  EXPECT_GT(damaged, 50);
}

TEST_F(RocksdbIndexTest, ATruncatedOrMissingTableIsDamage) {
  Replace(SnapshotOf(1000));
  const std::vector<fs::path> tables = FilesOf(".sst");
  ASSERT_EQ(tables.size(), 1u);
  fs::resize_file(tables[0], fs::file_size(tables[0]) / 2);
  EXPECT_EQ(StateAt(1), IndexState::kDamaged);
  fs::remove(tables[0]);
  EXPECT_EQ(StateAt(1), IndexState::kDamaged);
}

TEST_F(RocksdbIndexTest, DamagedManifestOrCurrentIsDamage) {
  Replace(SnapshotOf(100));
  for (const auto& entry : fs::directory_iterator(place_.index)) {
    if (!entry.path().filename().string().starts_with("MANIFEST")) continue;
    for (uint64_t offset = 0; offset < fs::file_size(entry); offset += 16) {
      FlipByte(entry.path(), offset);
      EXPECT_EQ(ContentsOf(place_.index, 1).state, IndexState::kDamaged) << offset;
      FlipByte(entry.path(), offset);
    }
  }
  std::ofstream(place_.index / "CURRENT") << "MANIFEST-999999\n";
  EXPECT_EQ(StateAt(1), IndexState::kDamaged);
  std::ofstream(place_.index / "CURRENT") << "";
  EXPECT_EQ(StateAt(1), IndexState::kDamaged);
  fs::remove(place_.index / "CURRENT");
  EXPECT_EQ(StateAt(1), IndexState::kDamaged);
}

// A copy of the index as a crash would leave it: applied changes lie in the log only.
class CrashedIndexTest : public RocksdbIndexTest {
 protected:
  static constexpr uint64_t kBatches = 50;

  CrashedIndexTest() : crashed_{directory_.path() / "crashed", place_.files} {
    Replace(SnapshotOf(0));
    const OpenedIndex opened = Open(1);
    for (uint64_t i = 0; i < kBatches; ++i) {
      ApplyAll(opened.index.get(), {{.puts = {Record(0, i), Record(1, i)}}});
    }
    fs::copy(place_.index, crashed_.index, fs::copy_options::recursive);
    for (const auto& entry : fs::directory_iterator(crashed_.index)) {
      if (entry.path().extension() == ".log" && entry.file_size() > 0) log_ = entry.path();
    }
  }

  // A reopened index must hold the batches up to some point, whole ones only. How many?
  uint64_t WholeBatches(const IndexSnapshot& snapshot) {
    const uint64_t batches = snapshot.records.size() / 2;
    std::vector<IndexRecord> expected;
    for (uint64_t i = 0; i < batches; ++i) {
      expected.push_back(Record(0, i));
      expected.push_back(Record(1, i));
    }
    EXPECT_TRUE(Sorted(snapshot.records) == Sorted(expected));
    return batches;
  }

  const IndexPlace crashed_;
  fs::path log_;
};

TEST_F(CrashedIndexTest, EverythingAcknowledgedIsThere) {
  const auto opened = RocksdbIndex::Open(crashed_, Start(2), &loop_);
  ASSERT_TRUE(opened) << opened.error().ToString();
  EXPECT_EQ(WholeBatches(opened->contents.snapshot), kBatches);
}

TEST_F(CrashedIndexTest, ATornTailLosesWholeBatchesFromTheEndOnly) {
  ASSERT_FALSE(log_.empty());
  const uint64_t bytes = fs::file_size(log_);
  fs::resize_file(log_, bytes - 10);
  EXPECT_EQ(WholeBatches(ContentsOf(crashed_.index, 2).snapshot), kBatches - 1);

  fs::resize_file(log_, bytes / 2);
  const auto opened = RocksdbIndex::Open(crashed_, Start(2), &loop_);
  ASSERT_TRUE(opened) << opened.error().ToString();
  const uint64_t left = WholeBatches(opened->contents.snapshot);
  EXPECT_GT(left, 0u);
  EXPECT_LT(left, kBatches);
}

TEST_F(CrashedIndexTest, AFlippedByteInTheLogLosesTheRestAtMost) {
  const uint64_t bytes = fs::file_size(log_);
  for (uint64_t offset = 0; offset < bytes; offset += bytes / 41) {
    FlipByte(log_, offset);
    const IndexContents contents = ContentsOf(crashed_.index, 2);
    if (contents.state == IndexState::kGood) WholeBatches(contents.snapshot);
    FlipByte(log_, offset);
  }
}

TEST_F(RocksdbIndexTest, AFailedWriteIsReportedAndLaterOnesSucceed) {
  Replace(SnapshotOf(0));
  {
    const OpenedIndex opened = Open(1);
    ASSERT_TRUE(opened.index);
    std::optional<Status> outcome;
    {
      const FullDisk full;
      for (uint64_t i = 0; i < 2; ++i) {
        outcome.reset();
        opened.index->Apply({.puts = {Record(0, i)}}, [&](const Status& s) { outcome = s; });
        loop_.RunUntil([&] { return outcome.has_value(); });
        ASSERT_FALSE(*outcome);
        EXPECT_EQ(outcome->error().code, ErrorCode::kIoError);
        EXPECT_EQ(outcome->error().reason, "index_write");
      }
    }
    ApplyAll(opened.index.get(), {{.puts = {Record(1, 7)}}});
  }
  const OpenedIndex opened = Open(2);
  EXPECT_EQ(opened.contents.state, IndexState::kGood);
  const auto& records = opened.contents.snapshot.records;
  EXPECT_TRUE(
      std::ranges::any_of(records, [](const IndexRecord& r) { return r.key == Record(1, 7).key; }));
}

TEST_F(RocksdbIndexTest, WithoutRoomAtTheStartItIsReadAndTakesBatchesAsSoonAsThereIs) {
  Replace(SnapshotOf(10));
  {
    OpenedIndex opened;
    {
      const FullDisk full;
      opened = Open(1);
      ASSERT_TRUE(opened.index) << opened.contents.detail;
      EXPECT_EQ(opened.contents.snapshot.records.size(), 10u);
      std::optional<Status> outcome;
      opened.index->Apply({.puts = {Record(1, 6)}}, [&](const Status& s) { outcome = s; });
      loop_.RunUntil([&] { return outcome.has_value(); });
      EXPECT_FALSE(*outcome);
    }
    ApplyAll(opened.index.get(), {{.puts = {Record(1, 7)}}});
  }
  const OpenedIndex opened = Open(2);
  EXPECT_EQ(opened.contents.state, IndexState::kGood) << opened.contents.detail;
  const auto& records = opened.contents.snapshot.records;
  EXPECT_TRUE(
      std::ranges::any_of(records, [](const IndexRecord& r) { return r.key == Record(1, 7).key; }));
}

TEST_F(RocksdbIndexTest, AStartWithoutRoomLeavesAGoodIndexToTheNext) {
  Replace(SnapshotOf(10));
  {
    const FullDisk full;
    ASSERT_TRUE(Open(1).index);
    ASSERT_TRUE(Open(2).index);
  }
  EXPECT_EQ(Open(3).contents.snapshot.records.size(), 10u);
}

TEST_F(RocksdbIndexTest, AReplaceThatStoppedWhileWritingLeavesTheOldIndex) {
  Replace(SnapshotOf(10));
  fs::create_directory(directory_.path() / "index.new");
  std::ofstream(directory_.path() / "index.new" / "000001.sst") << "half a table";
  EXPECT_EQ(Open(1).contents.snapshot.records.size(), 10u);
  Replace(SnapshotOf(20), 2);
  EXPECT_EQ(Open(2).contents.snapshot.records.size(), 20u);
  EXPECT_FALSE(fs::exists(directory_.path() / "index.new"));
}

TEST_F(RocksdbIndexTest, AReplaceThatStoppedBeforeTheRenameIsDoneAgain) {
  Replace(SnapshotOf(10));
  fs::rename(place_.index, directory_.path() / "index.new");
  EXPECT_EQ(StateAt(1), IndexState::kMissing);
  Replace(SnapshotOf(20));
  EXPECT_EQ(Open(1).contents.snapshot.records.size(), 20u);
}

TEST_F(RocksdbIndexTest, ReplaceIntoAPlaceThatCannotBeIsAnError) {
  std::ofstream(directory_.path() / "file") << "";
  const IndexPlace bad{.index = directory_.path() / "file" / "index", .files = place_.files};
  const Status status = RocksdbIndex::Replace(bad, Start(1), {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIoError);
}

TEST(RocksdbStatusTest, AQuotaThatIsSpentIsWantOfRoom) {
  for (const int number : {EDQUOT, EFBIG}) {
    EXPECT_TRUE(IsForWantOfRoom(rocksdb::Status::IOError("append", std::strerror(number))));
  }
  EXPECT_TRUE(IsForWantOfRoom(rocksdb::Status::NoSpace()));
  EXPECT_FALSE(IsForWantOfRoom(rocksdb::Status::IOError("append", std::strerror(EIO))));
}

}  // namespace
}  // namespace kvtier
