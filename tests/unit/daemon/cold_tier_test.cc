// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/cold_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/units.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

using testing::ElementsAre;

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

// A setting of then would make misses of what callers begin by the setting of now.
TEST_F(ColdTierTest, AsMuchMayBeUnderWayAsTheCachesSettingsOfNowAllow) {
  Config config;
  config.cold.endpoint = "file://" + directory_.path().string();
  const auto tier = ColdTier::Open(config, &clock_, &loop_, /*executor=*/nullptr, &log_);
  ASSERT_TRUE(tier) << tier.error().ToString();
  // How the puts of so many blocks at once end. The object is there already, and stays as it is.
  const auto put = [&](int blocks, uint64_t bytes) {
    const auto block = std::make_shared<const ColdObject>(bytes);
    std::set<std::string> ends;
    int ended = 0;
    for (int i = 0; i < blocks; ++i) {
      (*tier)->store()->Put("kvtier/1/a/b/c", block, {.ttl_s = 1000, .replaces = false}, 60'000,
                            [&](const Status& end) {
                              ++ended;
                              ends.insert(end ? "good" : end.error().reason);
                            });
    }
    loop_.RunUntil([&] { return ended == blocks; });
    return ends;
  };
  EXPECT_THAT(put(1, 1), ElementsAre("good"));
  EXPECT_THAT(put(40, 16 * kMiB), ElementsAre("cold_store_busy", "good"));
  config.cache.max_disk_read_bytes = 2 * kGiB;
  EXPECT_THAT(put(40, 16 * kMiB), ElementsAre("good"));
  config.cache.max_disk_read_bytes = 64 * kKiB;
  EXPECT_THAT(put(40, 16 * kMiB), ElementsAre("cold_store_busy", "good"));
  config.cache.slab_bytes = 128 * kMiB;
  EXPECT_THAT(put(3, 128 * kMiB), ElementsAre("good"));
}

TEST_F(ColdTierTest, APasswordThatIsNotThereFailsAStart) {
  EXPECT_EQ(Open("resp:///nonexistent/socket"), "cold_password");
  Write("\n");
  EXPECT_EQ(Open("resp:///nonexistent/socket"), "cold_password");
}

}  // namespace
}  // namespace kvtier
