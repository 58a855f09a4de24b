// SPDX-License-Identifier: Apache-2.0
// Kept memory over the public interface, on a daemon that hands all to each client that asks.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "tests/unit/client/client_fixture.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr uint32_t kBlocks = 8;
constexpr uint64_t kBytes = 10'000;

struct CloseMemory {
  void operator()(kvt_kept_memory* memory) const { kvt_kept_memory_close(memory); }
};
struct CloseTable {
  void operator()(kvt_kept_table* table) const { kvt_kept_table_close(table); }
};
struct Disconnect {
  void operator()(kvt_connection* connection) const { kvt_disconnect(connection); }
};
using Memory = std::unique_ptr<kvt_kept_memory, CloseMemory>;
using Table = std::unique_ptr<kvt_kept_table, CloseTable>;

class KeptMemoryTest : public ClientFixture {
 protected:
  void SetUp() override {
    ClientFixture::SetUp();
    const kvt_connect_options options = Options();
    kvt_connection* connection = nullptr;
    ASSERT_EQ(kvt_connect(socket_path().c_str(), &options, &connection), KVT_OK);
    client_.reset(connection);
  }
  void TearDown() override {
    client_.reset();
    ClientFixture::TearDown();
  }

  static kvt_kept_memory_options MemoryOptions() {
    kvt_kept_memory_options options;
    kvt_kept_memory_options_init(&options);
    std::memset(options.name, 7, sizeof(options.name));
    options.bytes = kBytes;
    options.blocks = kBlocks;
    return options;
  }
  // Null if it fails; then last_error_ says why.
  Memory Open(kvt_connection* connection, const kvt_kept_memory_options& options) {
    kvt_kept_memory* memory = nullptr;
    last_error_.clear();
    if (kvt_kept_memory_open(connection, &options, &memory) != KVT_OK) {
      last_error_ = kvt_last_error()->reason;
    }
    return Memory(memory);
  }
  Memory Open() { return Open(client_.get(), MemoryOptions()); }
  static char* Data(const Memory& memory) {
    return static_cast<char*>(kvt_kept_memory_data(memory.get()));
  }
  static void Publish(const Memory& memory, uint32_t group, const std::vector<uint32_t>& blocks,
                      const std::vector<kvt_hash>& hashes) {
    ASSERT_EQ(blocks.size(), hashes.size());
    EXPECT_EQ(
        kvt_kept_memory_publish(memory.get(), group, blocks.data(), hashes.data(), blocks.size()),
        KVT_OK);
  }
  // Block and the first byte of its hash.
  using Entries = std::vector<std::pair<uint32_t, int>>;
  template <typename Get>
  static Entries EntriesBy(const Get& get) {
    std::vector<uint32_t> blocks(kBlocks), groups(kBlocks);
    std::vector<kvt_hash> hashes(kBlocks);
    size_t count = 0;
    EXPECT_EQ(get(blocks.data(), groups.data(), hashes.data(), blocks.size(), &count), KVT_OK);
    Entries entries;
    for (size_t i = 0; i < count; ++i) entries.push_back({blocks[i], hashes[i].bytes[0]});
    return entries;
  }
  static Entries EntriesOf(const Memory& memory) {
    return EntriesBy(
        [&](auto... arguments) { return kvt_kept_memory_entries(memory.get(), arguments...); });
  }
  static Entries EntriesOf(const Table& table) {
    return EntriesBy(
        [&](auto... arguments) { return kvt_kept_table_entries(table.get(), arguments...); });
  }
  Table ReadTable() {
    kvt_kept_table* table = nullptr;
    EXPECT_EQ(kvt_kept_table_read(client_.get(), MemoryOptions().name, &table), KVT_OK);
    return Table(table);
  }
  // Changes the daemon's kept memory, as a process that is not this library's could.
  void Tamper(const std::function<void(FakeDaemon::Kept*)>& with) {
    daemon_->WithKept([&](auto* kept) {
      ASSERT_EQ(kept->size(), 1u);
      with(&kept->begin()->second);
    });
  }
  void WriteToTable(off_t offset, const void* bytes, size_t count) {
    Tamper([&](FakeDaemon::Kept* kept) {
      ASSERT_EQ(::pwrite(kept->table.get(), bytes, count, offset), static_cast<ssize_t>(count));
    });
  }

  std::unique_ptr<kvt_connection, Disconnect> client_;
  std::string last_error_;
};

TEST_F(KeptMemoryTest, BytesAndTableAreThereForTheNext) {
  Memory memory = Open();
  ASSERT_TRUE(memory) << last_error_;
  EXPECT_EQ(kvt_kept_memory_was_kept(memory.get()), 0);
  EXPECT_GE(kvt_kept_memory_bytes(memory.get()), kBytes);
  EXPECT_EQ(Data(memory)[kBytes - 1], '\0');
  std::strcpy(Data(memory), "computed");
  Publish(memory, 1, {5, 2}, Hashes(10, 2));
  memory.reset();

  memory = Open();
  ASSERT_TRUE(memory) << last_error_;
  EXPECT_EQ(kvt_kept_memory_was_kept(memory.get()), 1);
  EXPECT_STREQ(Data(memory), "computed");
  EXPECT_THAT(EntriesOf(memory), ElementsAre(Pair(5, 10), Pair(2, 11)));
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kKeepMemory), 1);
}

TEST_F(KeptMemoryTest, EntriesComeInTheOrderInWhichTheyWerePublished) {
  const Memory memory = Open();
  Publish(memory, 0, {1, 2, 3}, Hashes(1, 3));
  Publish(memory, 0, {2}, Hashes(9, 1));
  EXPECT_THAT(EntriesOf(memory), ElementsAre(Pair(1, 1), Pair(3, 3), Pair(2, 9)));
  const uint32_t retracted[] = {3, 7};
  EXPECT_EQ(kvt_kept_memory_retract(memory.get(), retracted, 2), KVT_OK);
  EXPECT_THAT(EntriesOf(memory), ElementsAre(Pair(1, 1), Pair(2, 9)));
  EXPECT_EQ(kvt_kept_memory_clear(memory.get()), KVT_OK);
  EXPECT_THAT(EntriesOf(memory), IsEmpty());
}

TEST_F(KeptMemoryTest, BlocksAndGroupsOutOfRangeAreRefusedAsAWhole) {
  const Memory memory = Open();
  const std::vector<kvt_hash> hashes = Hashes(1, 2);
  const uint32_t blocks[] = {0, kBlocks};
  EXPECT_EQ(kvt_kept_memory_publish(memory.get(), 0, blocks, hashes.data(), 2),
            KVT_INVALID_ARGUMENT);
  EXPECT_STREQ(kvt_last_error()->reason, "block_out_of_range");
  EXPECT_EQ(kvt_kept_memory_publish(memory.get(), KVT_MAX_KEPT_GROUPS, blocks, hashes.data(), 1),
            KVT_INVALID_ARGUMENT);
  EXPECT_STREQ(kvt_last_error()->reason, "bad_group");
  EXPECT_EQ(kvt_kept_memory_retract(memory.get(), blocks, 2), KVT_INVALID_ARGUMENT);
  EXPECT_THAT(EntriesOf(memory), IsEmpty());
}

TEST_F(KeptMemoryTest, AnotherRootClearsTheTable) {
  Memory memory = Open();
  uint8_t root[KVT_KEPT_ROOT_BYTES], other[KVT_KEPT_ROOT_BYTES];
  std::memset(root, 1, sizeof(root));
  std::memset(other, 2, sizeof(other));
  EXPECT_EQ(kvt_kept_memory_set_root(memory.get(), root), KVT_OK);
  Publish(memory, 0, {1}, Hashes(1, 1));
  memory = nullptr;
  memory = Open();
  EXPECT_EQ(kvt_kept_memory_set_root(memory.get(), root), KVT_OK);
  EXPECT_EQ(EntriesOf(memory).size(), 1u);
  EXPECT_EQ(kvt_kept_memory_set_root(memory.get(), other), KVT_OK);
  EXPECT_THAT(EntriesOf(memory), IsEmpty());
  uint8_t read[KVT_KEPT_ROOT_BYTES];
  EXPECT_EQ(kvt_kept_memory_root(memory.get(), read), KVT_OK);
  EXPECT_EQ(std::memcmp(read, other, sizeof(read)), 0);
}

TEST_F(KeptMemoryTest, AnotherProcessReadsTheTableAsItIs) {
  EXPECT_EQ(ReadTable(), nullptr);
  const Memory memory = Open();
  Publish(memory, 3, {1, 4}, Hashes(1, 2));
  const Table table = ReadTable();
  ASSERT_NE(table, nullptr);
  Publish(memory, 3, {5}, Hashes(9, 1));
  EXPECT_THAT(EntriesOf(table), ElementsAre(Pair(1, 1), Pair(4, 2)));
  uint32_t block = 0, group = 0;
  kvt_hash hash;
  size_t count = 0;
  EXPECT_EQ(kvt_kept_table_entries(table.get(), &block, &group, &hash, 1, &count), KVT_OK);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(group, 3u);
}

TEST_F(KeptMemoryTest, WithoutADaemonItIsAllocatedAndKeptLater) {
  Memory memory = Open(nullptr, MemoryOptions());
  ASSERT_TRUE(memory) << last_error_;
  std::strcpy(Data(memory), "early");
  EXPECT_EQ(kvt_kept_memory_keep(memory.get(), client_.get()), KVT_OK);
  memory.reset();
  const Memory next = Open();
  EXPECT_STREQ(Data(next), "early");
}

TEST_F(KeptMemoryTest, ADaemonThatIsLostIsNoError) {
  daemon_.reset();
  const Memory memory = Open();
  ASSERT_TRUE(memory) << last_error_;
  EXPECT_EQ(kvt_kept_memory_keep(memory.get(), client_.get()), KVT_UNAVAILABLE);
  // Its successor knows nothing of it until it is told.
  StartDaemon({});
  EXPECT_EQ(kvt_kept_memory_keep(memory.get(), client_.get()), KVT_OK);
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kKeepMemory), 1);
}

TEST_F(KeptMemoryTest, AnotherProcesssMemoryIsRefused) {
  daemon_->RefuseKeptMemory(true);
  EXPECT_FALSE(Open());
  EXPECT_EQ(last_error_, "memory_in_use");
  const Memory memory = Open(nullptr, MemoryOptions());
  EXPECT_EQ(kvt_kept_memory_keep(memory.get(), client_.get()), KVT_WRONG_STATE);
}

TEST_F(KeptMemoryTest, ANameHasOneOwnerInAProcess) {
  Memory memory = Open();
  ASSERT_TRUE(memory) << last_error_;
  EXPECT_FALSE(Open());
  EXPECT_EQ(last_error_, "memory_in_use");
  const Memory unkept = Open(nullptr, MemoryOptions());
  ASSERT_TRUE(unkept) << last_error_;
  EXPECT_EQ(kvt_kept_memory_keep(unkept.get(), client_.get()), KVT_WRONG_STATE);
  EXPECT_EQ(kvt_kept_memory_keep(memory.get(), client_.get()), KVT_OK);
  memory.reset();
  EXPECT_EQ(kvt_kept_memory_keep(unkept.get(), client_.get()), KVT_OK);
}

TEST_F(KeptMemoryTest, ADaemonThatMayYetHandItOverIsNotTakenForNone) {
  client_.reset();
  const kvt_connect_options options = ImpatientOptions();
  kvt_connection* connection = nullptr;
  ASSERT_EQ(kvt_connect(socket_path().c_str(), &options, &connection), KVT_OK);
  client_.reset(connection);
  daemon_->HoldBack(wire::MessageType::kTakeMemory);
  EXPECT_FALSE(Open());
  EXPECT_EQ(last_error_, "request_timeout");
}

TEST_F(KeptMemoryTest, AnOwnerThatIsEndingIsWaitedFor) {
  (void)Open();
  const auto takes = std::make_shared<std::atomic<int>>(0);
  daemon_->Intercept([takes](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kTakeMemory)) return std::nullopt;
    if (++*takes > 2) return std::nullopt;
    return FrameOf(wire::ErrorReply{{ErrorCode::kWrongState, "memory_in_use", "by another"}},
                   frame.request_id);
  });
  EXPECT_EQ(kvt_kept_memory_was_kept(Open().get()), 1);
  EXPECT_EQ(*takes, 3);
}

TEST_F(KeptMemoryTest, MemoryOfAnotherShapeIsGivenBackAndMadeAnew) {
  for (const bool other_blocks : {true, false}) {
    (void)Open();
    kvt_kept_memory_options options = MemoryOptions();
    if (other_blocks) {
      options.blocks = kBlocks + 1;
    } else {
      options.bytes = 5 * kBytes;
    }
    const int released = daemon_->Requests(wire::MessageType::kReleaseMemory);
    const Memory memory = Open(client_.get(), options);
    ASSERT_TRUE(memory) << last_error_;
    EXPECT_EQ(kvt_kept_memory_was_kept(memory.get()), 0);
    EXPECT_EQ(daemon_->Requests(wire::MessageType::kReleaseMemory), released + 1);
  }
}

TEST_F(KeptMemoryTest, ATableOfAnotherVersionIsNone) {
  const uint32_t version = 2;
  (void)Open();
  WriteToTable(8, &version, sizeof(version));
  EXPECT_EQ(ReadTable(), nullptr);
  const Memory memory = Open();
  EXPECT_EQ(kvt_kept_memory_was_kept(memory.get()), 0);
  EXPECT_EQ(EntriesOf(ReadTable()).size(), 0u);
}

TEST_F(KeptMemoryTest, ATableThatClaimsMoreBlocksThanItHasIsNone) {
  const uint32_t blocks = kBlocks + 1;
  (void)Open();
  WriteToTable(12, &blocks, sizeof(blocks));
  EXPECT_EQ(ReadTable(), nullptr);
  EXPECT_EQ(kvt_kept_memory_was_kept(Open().get()), 0);
}

TEST_F(KeptMemoryTest, RecordsThatNoPublishingHasWrittenDoNotCount) {
  Memory memory = Open();
  Publish(memory, 0, {1, 2, 3}, Hashes(1, 3));
  memory.reset();
  const uint64_t never = 100;
  const uint32_t group = KVT_MAX_KEPT_GROUPS;
  WriteToTable(64 + 1 * 64, &never, sizeof(never));
  WriteToTable(64 + 2 * 64 + 8, &group, sizeof(group));
  EXPECT_THAT(EntriesOf(ReadTable()), ElementsAre(Pair(3, 3)));
  EXPECT_THAT(EntriesOf(Open()), ElementsAre(Pair(3, 3)));
}

TEST_F(KeptMemoryTest, MemoryThatCanShrinkIsNotMapped) {
  for (const bool table : {true, false}) {
    (void)Open();
    Tamper([&](FakeDaemon::Kept* kept) {
      UniqueFd& fd = table ? kept->table : kept->memory;
      fd = UniqueFd(::memfd_create("shrinks", MFD_CLOEXEC));
      ASSERT_EQ(::ftruncate(fd.get(), 1 << 20), 0);
    });
    EXPECT_EQ(kvt_kept_memory_was_kept(Open().get()), 0);
  }
}

TEST_F(KeptMemoryTest, ADaemonThatSendsNoDescriptorsIsBorne) {
  daemon_->Intercept([](const wire::Frame& frame) -> std::optional<FakeDaemon::Bytes> {
    if (frame.type != static_cast<uint16_t>(wire::MessageType::kTakeMemory)) return std::nullopt;
    return FrameOf(wire::TakeMemoryReply{.found = true, .bytes = 12288, .table_bytes = 576},
                   frame.request_id);
  });
  EXPECT_EQ(ReadTable(), nullptr);
  EXPECT_EQ(kvt_kept_memory_was_kept(Open().get()), 0);
}

TEST_F(KeptMemoryTest, MemoryIsReleasedByItsNameOrAllOfIt) {
  (void)Open();
  uint32_t released = 0;
  uint64_t bytes = 0;
  EXPECT_EQ(
      kvt_memory_release(client_.get(), MemoryOptions().name, KVT_ANY_DEVICE, &released, &bytes),
      KVT_OK);
  EXPECT_EQ(released, 1u);
  EXPECT_GE(bytes, kBytes);
  EXPECT_EQ(kvt_memory_release(client_.get(), nullptr, KVT_ANY_DEVICE, &released, &bytes), KVT_OK);
  EXPECT_EQ(released, 0u);
}

TEST_F(KeptMemoryTest, AGpuThatIsNotThereIsRefused) {
  kvt_kept_memory_options options = MemoryOptions();
  options.cuda_device = 99;
  EXPECT_FALSE(Open(client_.get(), options));
  EXPECT_FALSE(last_error_.empty());
  EXPECT_EQ(daemon_->Requests(wire::MessageType::kKeepMemory), 0);
}

TEST_F(KeptMemoryTest, OptionsThatMakeNoSenseAreRefused) {
  for (const auto& spoil : std::vector<std::function<void(kvt_kept_memory_options*)>>{
           [](auto* options) { options->bytes = 0; },
           [](auto* options) { options->bytes = UINT64_MAX; },
           [](auto* options) { options->blocks = 0; },
           [](auto* options) { options->blocks = KVT_MAX_REGION_BLOCKS + 1; }}) {
    kvt_kept_memory_options options = MemoryOptions();
    spoil(&options);
    EXPECT_FALSE(Open(client_.get(), options));
    EXPECT_EQ(last_error_, "bad_options");
  }
}

}  // namespace
}  // namespace kvtier::client
