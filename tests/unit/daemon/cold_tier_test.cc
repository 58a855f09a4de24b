// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/cold_tier.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "base/clock.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

class ColdTierTest : public testing::Test {
 protected:
  // How an opening ends: with nothing, or the reason why it failed.
  std::string Open(const std::string& endpoint) {
    Config config;
    config.cold = {.endpoint = endpoint, .password_file = file_};
    const auto opened = ColdTier::Open(config, &clock_, &loop_, /*executor=*/nullptr, &log_);
    return opened ? std::string() : opened.error().reason;
  }
  void Write(const std::string& text) const { std::ofstream(file_) << text; }

 private:
  TestDirectory directory_;
  const std::string file_ = directory_.path().string() + "/file";
  SystemClock clock_;
  EventLoop loop_;
  Log log_{LogConfig{.level = LogLevel::kError}};
};

// Their library reads them when it needs them.
TEST_F(ColdTierTest, AStartDoesNotWaitForCredentials) {
  const std::string bucket = "s3://blocks?endpoint=http://127.0.0.1:1";
  const std::string without_file = Open(bucket);
  if (without_file == "cold_library") GTEST_SKIP() << "it was not built";
  EXPECT_EQ(without_file, "");
  Write("\n[default]\naws_access_key_id = a\naws_secret_access_key = b\n");
  EXPECT_EQ(Open(bucket), "");
}

TEST_F(ColdTierTest, APasswordThatIsNotThereFailsAStart) {
  EXPECT_EQ(Open("resp:///nonexistent/socket"), "cold_password");
  Write("\n");
  EXPECT_EQ(Open("resp:///nonexistent/socket"), "cold_password");
}

}  // namespace
}  // namespace kvtier
