// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <functional>
#include <string>

#include "base/posix.h"

namespace kvtier {
namespace {

std::string Written(const LogConfig& config, const std::function<void(Log*)>& write) {
  testing::internal::CaptureStderr();
  {
    Log log(config);
    write(&log);
  }
  return testing::internal::GetCapturedStderr();
}

// Standard error as a pipe that is read when the test says so.
class StalledStandardError {
 public:
  StalledStandardError() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reading_ = UniqueFd(ends[0]);
    const UniqueFd writing(ends[1]);
    EXPECT_EQ(::dup2(writing.get(), STDERR_FILENO), STDERR_FILENO);
  }
  ~StalledStandardError() { ::dup2(before_.get(), STDERR_FILENO); }

  // All that was written, as soon as it has `text`.
  [[nodiscard]] const std::string& ReadUntil(const std::string& text) {
    char bytes[4096];
    while (read_.find(text) == std::string::npos) {
      const ssize_t got = ::read(reading_.get(), bytes, sizeof(bytes));
      if (got <= 0) break;
      read_.append(bytes, static_cast<size_t>(got));
    }
    return read_;
  }

 private:
  const UniqueFd before_{::dup(STDERR_FILENO)};
  UniqueFd reading_;
  std::string read_;
};

TEST(Log, AReaderThatStallsHoldsUpNobodyAndIsToldHowMuchItMissed) {
  constexpr int kLines = 4000;
  StalledStandardError reader;
  Log log(LogConfig{});
  for (int i = 0; i < kLines; ++i) {
    log.Info("test.line" + std::to_string(i / 40), "{}", std::string(1000, 'x'));
  }
  const std::string text = reader.ReadUntil(" lines were left out");
  int left_out = 0;
  const size_t told = text.find("log.left_out: ");
  ASSERT_NE(told, std::string::npos);
  ASSERT_EQ(std::sscanf(text.c_str() + told, "log.left_out: %d lines", &left_out), 1);
  EXPECT_GT(left_out, 0);
  EXPECT_EQ(std::ranges::count(text.substr(0, told), '\n') + left_out, kLines);
  log.Info("test.later", "heard again");
  (void)reader.ReadUntil("test.later: heard again\n");
}

TEST(Log, AReaderThatStallsHoldsUpTheEndForAMomentOnly) {
  StalledStandardError reader;
  {
    Log log(LogConfig{});
    for (int i = 0; i < 40; ++i) log.Info("test.line", "{}", std::string(5000, 'x'));
    log.Error("test.last", "why it ends");
  }
  (void)reader.ReadUntil("test.last: why it ends\n");
}

TEST(Log, LineHasIdAndText) {
  const std::string text =
      Written({}, [](Log* log) { log->Warning("disk.degraded", "{} of {}", 1, 2); });
  EXPECT_NE(text.find(" W disk.degraded: 1 of 2\n"), std::string::npos) << text;
}

TEST(Log, JsonLinesAreJsonWhateverIsLogged) {
  const std::string text = Written({.format = LogFormat::kJson}, [](Log* log) {
    log->Error("test.odd", "quote \" backslash \\ newline \n bell \a {}", "{}");
  });
  EXPECT_EQ(std::ranges::count(text, '\n'), 1);
  const boost::json::value line = boost::json::parse(text);
  EXPECT_EQ(line.at("id"), "test.odd");
  EXPECT_EQ(line.at("level"), "error");
  EXPECT_EQ(line.at("message"), "quote \" backslash \\ newline   bell   {}");
}

TEST(Log, MessagesBelowTheLevelAreNotWritten) {
  const std::string text = Written({.level = LogLevel::kWarning}, [](Log* log) {
    EXPECT_FALSE(log->Enabled(LogLevel::kInfo));
    log->Info("test.quiet", "quiet");
    log->Debug("test.quiet", "quiet");
    log->Warning("test.loud", "loud");
  });
  EXPECT_EQ(text.find("quiet"), std::string::npos);
  EXPECT_NE(text.find("loud"), std::string::npos);
}

TEST(Log, TheSameMessageOverAndOverIsCut) {
  const std::string text = Written({}, [](Log* log) {
    for (int i = 0; i < 100 * kMaxLinesPerSecond; ++i) log->Info("test.flood", "{}", i);
    log->Info("test.other", "still heard");
  });
  EXPECT_LT(std::ranges::count(text, '\n'), 50 * kMaxLinesPerSecond);
  EXPECT_NE(text.find("still heard"), std::string::npos);
}

}  // namespace
}  // namespace kvtier
