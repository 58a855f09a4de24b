// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/kept_table_reader.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/net/descriptor_closer.h"
#include "protocol/kept_table_layout.h"

namespace kvtier {
namespace {

constexpr uint32_t kBlocks = 4;
constexpr uint32_t kGroup = 1;

BlockHash HashOf(uint8_t byte) {
  BlockHash hash;
  hash.bytes.fill(byte);
  return hash;
}

// Keeps the events that other threads post.
class Posted final : public EventQueue {
 public:
  void Post(std::function<void()> event) override {
    const std::lock_guard lock(mutex_);
    event_ = std::move(event);
    posted_.notify_one();
  }
  // Waits for the next one.
  std::function<void()> Take() {
    std::unique_lock lock(mutex_);
    posted_.wait(lock, [this] { return event_.has_value(); });
    return *std::exchange(event_, std::nullopt);
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::optional<std::function<void()>> event_;
};

class KeptTableReaderTest : public testing::Test {
 protected:
  KeptTableReaderTest() : table_(::memfd_create("table", MFD_CLOEXEC)) {
    Cut(sizeof(wire::KeptTableHeader) + kBlocks * sizeof(wire::KeptTableRecord));
    reader_.emplace(UniqueFd(::dup(table_.get())), closer_->CloseFor("tenant"), kGroup, "reader",
                    closer_->threads(), mail_);
  }
  void Cut(uint64_t bytes) { ASSERT_EQ(::ftruncate(table_.get(), static_cast<off_t>(bytes)), 0); }
  void Write(uint32_t block, uint64_t number, uint32_t group, const BlockHash& hash) {
    wire::KeptTableRecord record{.state = number, .group = group, .hash = {}};
    std::memcpy(record.hash.data(), hash.bytes.data(), sizeof(record.hash));
    const off_t offset = sizeof(wire::KeptTableHeader) + block * sizeof(record);
    ASSERT_EQ(::pwrite(table_.get(), &record, sizeof(record), offset), ssize_t{sizeof(record)});
  }
  std::vector<uint64_t> Look(std::vector<PublishedBlocks::Asked> blocks) {
    std::vector<uint64_t> answer;
    reader_->Look(std::move(blocks),
                  [&answer](const std::vector<uint64_t>& numbers) { answer = numbers; });
    posted_.Take()();
    return answer;
  }

  Posted posted_;
  LoopMail mail_{&posted_};
  std::optional<DescriptorCloser> closer_{std::in_place};
  const UniqueFd table_;
  std::optional<KeptTableReader> reader_;
};

TEST_F(KeptTableReaderTest, SaysUnderWhichNumberABlockHoldsTheHash) {
  Write(0, 7, kGroup, HashOf(1));
  Write(3, 8, kGroup, HashOf(2));
  EXPECT_EQ(Look({{BlockIndex(0), HashOf(1)}, {BlockIndex(3), HashOf(2)}}),
            (std::vector<uint64_t>{7, 8}));
}

TEST_F(KeptTableReaderTest, SaysZeroOfAnotherHashAnotherGroupAndABlockThatHoldsNothing) {
  Write(0, 7, kGroup, HashOf(1));
  Write(1, 8, kGroup + 1, HashOf(1));
  Write(2, 0, kGroup, HashOf(1));
  EXPECT_EQ(Look({{BlockIndex(0), HashOf(2)},
                  {BlockIndex(1), HashOf(1)},
                  {BlockIndex(2), HashOf(1)},
                  {BlockIndex(3), HashOf(1)}}),
            (std::vector<uint64_t>(4)));
}

TEST_F(KeptTableReaderTest, ATableThatItsEngineHasCutSaysNothing) {
  Write(1, 7, kGroup, HashOf(1));
  Cut(sizeof(wire::KeptTableHeader) + sizeof(wire::KeptTableRecord) + 8);
  EXPECT_EQ(Look({{BlockIndex(1), HashOf(1)}, {BlockIndex(UINT32_MAX), HashOf(1)}}),
            (std::vector<uint64_t>(2)));
}

TEST_F(KeptTableReaderTest, AnAnswerThatComesWhenTheLoopHasGoneIsDropped) {
  mail_.Close();
  bool answered = false;
  reader_->Look({{BlockIndex(0), HashOf(1)}},
                [&answered](const std::vector<uint64_t>&) { answered = true; });
  while (closer_->threads().pending() > 0) std::this_thread::yield();
  EXPECT_FALSE(answered);
}

// A thread of a sender may outlive all else, and be the last that holds the table.
TEST_F(KeptTableReaderTest, ALookThatIsUnderWayWhenTheDaemonEndsClosesTheTable) {
  const SenderThreads threads = closer_->threads();
  std::mutex hangs;
  std::unique_lock hang(hangs);
  threads.Run({SenderThreads::Use::kReadTable, "reader"},
              [&hangs] { const std::lock_guard waits(hangs); });
  reader_->Look({{BlockIndex(0), HashOf(1)}}, [](const std::vector<uint64_t>&) {});
  mail_.Close();
  reader_.reset();
  closer_.reset();
  hang.unlock();
  while (threads.pending() > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace kvtier
