// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/disk_ceiling.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "tools/support/temporary_directory.h"

namespace kvtier {
namespace {

constexpr uint64_t kSlotBytes = 64 * kKiB;
constexpr uint64_t kBlocks = 300;  // a set is more than the smallest queue

class DiskCeilingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto directory = TemporaryDirectory::Create();
    ASSERT_TRUE(directory) << directory.error().ToString();
    directory_.emplace(std::move(*directory));
  }

  void WriteFile(const std::string& name, uint64_t bytes) {
    const std::string path = directory_->path() + "/" + name;
    std::ofstream(path).put('x');
    std::filesystem::resize_file(path, bytes);
  }

  std::optional<TemporaryDirectory> directory_;
};

TEST_F(DiskCeilingTest, WithoutADataFileThereIsNothingToMeasure) {
  const auto ceiling = DiskCeiling::Find(directory_->path(), kSlotBytes, kBlocks, 0);
  ASSERT_FALSE(ceiling);
  EXPECT_EQ(ceiling.error().code, ErrorCode::kNotFound);
}

TEST_F(DiskCeilingTest, TellsTheTimesOfOneDepthWhereverTheBytesLand) {
  WriteFile("index", kSlotBytes);
  WriteFile("blocks.kvt", 2 * kBlocks * kSlotBytes);
  for (const uint64_t memory_bytes : {uint64_t{0}, kBlocks * kSlotBytes / 2}) {
    auto ceiling = DiskCeiling::Find(directory_->path(), kSlotBytes, kBlocks, memory_bytes);
    ASSERT_TRUE(ceiling) << ceiling.error().ToString();
    for (int turn = 0; turn < 3; ++turn) {
      const Status measured = ceiling->Measure();
      if (!measured && measured.error().code == ErrorCode::kUnsupported) {
        GTEST_SKIP() << measured.error().ToString();
      }
      ASSERT_TRUE(measured) << measured.error().ToString();
    }
    const DiskCeiling::Best best = ceiling->best();
    EXPECT_GE(best.queue_bytes, 8 * kMiB);
    ASSERT_EQ(best.seconds.size(), 3u);
    for (const double seconds : best.seconds) EXPECT_GT(seconds, 0);
  }
}

TEST_F(DiskCeilingTest, AFileTooShortForTwoSetsIsAnErrorAndNotAFastDisk) {
  WriteFile("blocks.kvt", kBlocks * kSlotBytes);
  auto ceiling = DiskCeiling::Find(directory_->path(), kSlotBytes, kBlocks, 0);
  ASSERT_TRUE(ceiling) << ceiling.error().ToString();
  const Status first = ceiling->Measure();
  if (!first && first.error().code == ErrorCode::kUnsupported) {
    GTEST_SKIP() << first.error().ToString();
  }
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_FALSE(ceiling->Measure());
}

}  // namespace
}  // namespace kvtier
