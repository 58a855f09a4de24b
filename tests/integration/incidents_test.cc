// SPDX-License-Identifier: Apache-2.0
// Faults of a daemon that serves are in its log and in the output of kvtierctl.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kBlocks = 40;

class IncidentsTest : public DaemonTest {
 protected:
  // Changes a byte in the middle of each slot, whatever is there.
  void DamageEverySlot() {
    const std::filesystem::path file =
        std::filesystem::path(daemon().disk_directory()) / "blocks.kvt";
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const uint64_t bytes = std::filesystem::file_size(file);
    for (uint64_t at = kTestSlabBytes / 2; at < bytes; at += kTestBlockBytes) {
      stream.seekg(static_cast<std::streamoff>(at));
      const auto byte = static_cast<char>(stream.get());
      stream.seekp(static_cast<std::streamoff>(at));
      stream.put(static_cast<char>(byte ^ 0x5a));
    }
  }
};

TEST_F(IncidentsTest, DamageOnDiskHasLinesInTheLogAndAReasonInTheStatus) {
  StartDaemon();
  EXPECT_EQ(Play(Prompt("a", kBlocks)).blocks.miss, kBlocks);
  (void)Admin("drain");
  daemon().Kill();
  DamageEverySlot();
  ASSERT_TRUE(daemon().Restart());
  EXPECT_THAT(Log(), Not(HasSubstr("disk.damaged")));

  const ReplayReport after = Play(Prompt("a", kBlocks));
  EXPECT_EQ(after.wrong_blocks, 0u);
  EXPECT_GT(after.blocks.miss, 0u);
  EXPECT_TRUE(Eventually([this] { return Log().find("blocks.kvt at ") != std::string::npos; }));
  EXPECT_THAT(Ctl({"status"}).output, HasSubstr("missed: "));
  EXPECT_THAT(Ctl({"status"}).output, HasSubstr("_mismatch "));
}

}  // namespace
}  // namespace kvtier
