// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "daemon/runtime/log.h"

namespace kvtier {
namespace {

TEST(Journal, EntryKeepsLevelAndIdAsFields) {
  EXPECT_EQ(JournalFields(LogLevel::kWarning, "disk.degraded", "1 of 2"),
            (std::vector<std::string>{"MESSAGE=disk.degraded: 1 of 2", "PRIORITY=4",
                                      "KVTIER_ID=disk.degraded", "SYSLOG_IDENTIFIER=kvtierd"}));
  EXPECT_EQ(JournalFields(LogLevel::kError, "a", "b")[1], "PRIORITY=3");
  EXPECT_EQ(JournalFields(LogLevel::kInfo, "a", "b")[1], "PRIORITY=6");
  EXPECT_EQ(JournalFields(LogLevel::kDebug, "a", "b")[1], "PRIORITY=7");
}

TEST(Journal, IsRecognisedByTheDescriptorItselfAndNotByTheVariableAlone) {
  ::unsetenv("JOURNAL_STREAM");
  EXPECT_FALSE(IsJournal(STDERR_FILENO));
  ::setenv("JOURNAL_STREAM", "1:1", 1);
  EXPECT_FALSE(IsJournal(STDERR_FILENO)) << "inherited, but led elsewhere since";
  struct stat status {};
  ASSERT_EQ(::fstat(STDERR_FILENO, &status), 0);
  ::setenv("JOURNAL_STREAM", fmt::format("{}:{}", status.st_dev, status.st_ino).c_str(), 1);
  EXPECT_TRUE(IsJournal(STDERR_FILENO));
  EXPECT_FALSE(IsJournal(-1));
  ::unsetenv("JOURNAL_STREAM");
}

}  // namespace
}  // namespace kvtier
