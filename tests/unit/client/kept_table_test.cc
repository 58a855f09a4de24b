// SPDX-License-Identifier: Apache-2.0
// The table of a process that was killed at any moment, or that writes meanwhile.
#include "client/core/kept_table.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

namespace kvtier::client {
namespace {

constexpr uint32_t kBlocks = 16;

// A digest of four words that hang together.
BlockHash HashOf(uint32_t block, uint64_t value) {
  const std::array<uint64_t, 4> words = {value, value * 3 + block, ~value, block};
  BlockHash hash;
  std::memcpy(hash.bytes.data(), words.data(), sizeof(words));
  return hash;
}

uint64_t ValueOf(const BlockHash& hash) {
  uint64_t value;
  std::memcpy(&value, hash.bytes.data(), sizeof(value));
  return value;
}

// An engine's memory, a word for each block, shared with a child that computes and publishes.
class KeptTableTest : public testing::Test {
 protected:
  struct Memory {
    std::array<std::atomic<uint64_t>, kBlocks> words;
    std::atomic<uint64_t> published;
  };
  KeptTableTest()
      : memory_(static_cast<Memory*>(::mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
        table_(KeptTable::Create(kBlocks).value()) {}
  ~KeptTableTest() override { ::munmap(memory_, sizeof(Memory)); }

  // Runs until it is killed. Each value is written once.
  pid_t StartEngine(uint64_t first_value) {
    const pid_t engine = ::fork();
    if (engine != 0) return engine;
    for (uint64_t value = first_value;; ++value) {
      const auto block = static_cast<uint32_t>(value * 7 % kBlocks);
      if (!table_->Retract({&block, 1})) ::_exit(1);
      memory_->words[block].store(value, std::memory_order_relaxed);
      const BlockHash hash = HashOf(block, value);
      if (!table_->Publish(value % 4, {&block, 1}, {&hash, 1})) ::_exit(1);
      memory_->published.fetch_add(1);
    }
  }
  // REQUIRES: it runs.
  static void Kill(pid_t engine) {
    ::kill(engine, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(engine, &status, 0), engine);
    ASSERT_TRUE(WIFSIGNALED(status));
  }

  Memory* const memory_;
  const std::unique_ptr<KeptTable> table_;
};

TEST_F(KeptTableTest, WhatAKilledProcessLeavesIsTrue) {
  constexpr int kKills = 50;
  uint64_t first_value = 1;
  for (int kill = 1; kill <= kKills; ++kill) {
    const uint64_t until = memory_->published + static_cast<uint64_t>(kill) * 37;
    const pid_t engine = StartEngine(first_value);
    while (memory_->published < until) {
    }
    Kill(engine);
    const KeptTableContents contents = table_->Contents();
    EXPECT_GE(contents.blocks.size(), kBlocks - 1) << "one at most was being written";
    uint64_t before = 0;
    for (const KeptTableContents::Block& kept : contents.blocks) {
      const uint64_t value = memory_->words[kept.block];
      ASSERT_EQ(kept.hash, HashOf(kept.block, value));
      EXPECT_EQ(kept.group, value % 4);
      EXPECT_GT(value, before) << "the oldest come first";
      before = value;
    }
    // The table goes on where it is.
    first_value = memory_->published + 1000 * static_cast<uint64_t>(kill);
  }
}

TEST_F(KeptTableTest, AReaderSeesNoBlockThatIsHalfWritten) {
  const pid_t engine = StartEngine(1);
  for (int look = 0; look < 2000; ++look) {
    const auto contents = KeptTable::Read(table_->fd());
    ASSERT_TRUE(contents);
    for (const KeptTableContents::Block& kept : contents->blocks) {
      ASSERT_EQ(kept.hash, HashOf(kept.block, ValueOf(kept.hash)));
    }
  }
  Kill(engine);
}

}  // namespace
}  // namespace kvtier::client
