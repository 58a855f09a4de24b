// SPDX-License-Identifier: Apache-2.0
// The mark beside the index that says which life of the files it belongs to.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/fakes/temporary_directory.h"
#include "tiers/storage/disk_directory.h"

namespace kvtier {
namespace {

class EpochMarkTest : public ::testing::Test {
 protected:
  void WriteRaw(const std::string& text) {
    std::ofstream(directory_.path() / "index.epoch") << text;
  }
  const TestDirectory directory_;
};

TEST_F(EpochMarkTest, NoMarkIsEpochZero) { EXPECT_EQ(EpochMark::Read(directory_.path()), 0u); }

TEST_F(EpochMarkTest, ReadsWhatWasWrittenLast) {
  ASSERT_TRUE(EpochMark::Write(directory_.path(), 7));
  ASSERT_TRUE(EpochMark::Write(directory_.path(), UINT64_MAX - 1));
  EXPECT_EQ(EpochMark::Read(directory_.path()), UINT64_MAX - 1);
}

TEST_F(EpochMarkTest, RemovedMarkIsEpochZeroAndRemovingTwiceIsFine) {
  ASSERT_TRUE(EpochMark::Write(directory_.path(), 7));
  ASSERT_TRUE(EpochMark::Remove(directory_.path()));
  ASSERT_TRUE(EpochMark::Remove(directory_.path()));
  EXPECT_EQ(EpochMark::Read(directory_.path()), 0u);
}

TEST_F(EpochMarkTest, AMarkThatIsNotANumberMakesEveryIndexStale) {
  for (const char* text : {"", "\n", "7", "7\n\n", "-7\n", " 7\n", "7x\n", "0x7\n",
                           "18446744073709551616\n", "00000000000000000000000000000007\n"}) {
    WriteRaw(text);
    EXPECT_EQ(EpochMark::Read(directory_.path()), UINT64_MAX) << text;
  }
}

TEST_F(EpochMarkTest, AMissingDirectoryIsAnError) {
  const Status status = EpochMark::Write(directory_.path() / "gone", 7);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIoError);
  EXPECT_EQ(status.error().reason, "epoch_mark");
}

}  // namespace
}  // namespace kvtier
