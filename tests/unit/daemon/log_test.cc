// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <functional>
#include <string>

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
