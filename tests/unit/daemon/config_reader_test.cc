// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/config_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <thread>

namespace kvtier {
namespace {

class ConfigReaderTest : public testing::Test {
 protected:
  // A read that lasts until it is let go.
  struct Gated {
    std::promise<void> release;
    std::shared_future<void> released{release.get_future()};
    std::atomic<int> reads = 0;
    std::atomic<std::thread::id> thread;
  };

  ConfigReader::Read Reading() {
    return [gated = gated_]() -> Result<Config> {
      ++gated->reads;
      gated->thread = std::this_thread::get_id();
      gated->released.wait();
      Config config;
      config.server.max_clients = 7;
      return config;
    };
  }
  void WaitForTheRead() {
    while (gated_->reads == 0) std::this_thread::yield();
  }
  auto Into(std::optional<Result<Config>>* result) {
    return [result](Result<Config> read) { *result = std::move(read); };
  }

  const std::shared_ptr<Gated> gated_ = std::make_shared<Gated>();
  EventLoop loop_;
};

TEST_F(ConfigReaderTest, ReadsOnAnotherThreadWhileTheLoopGoesOn) {
  ConfigReader reader(&loop_, Reading(), 60'000);
  std::optional<Result<Config>> result;
  reader.Start(Into(&result));
  WaitForTheRead();
  bool served = false;
  loop_.Post([&] { served = true; });
  loop_.RunUntil([&] { return served; });
  EXPECT_FALSE(result.has_value());
  gated_->release.set_value();
  loop_.RunUntil([&] { return result.has_value(); });
  EXPECT_EQ((*result)->server.max_clients, 7u);
  EXPECT_NE(gated_->thread.load(), std::this_thread::get_id());
}

TEST_F(ConfigReaderTest, GivesUpOnAReadThatHangs) {
  ConfigReader reader(&loop_, Reading(), 1);
  std::optional<Result<Config>> result;
  reader.Start(Into(&result));
  loop_.RunUntil([&] { return result.has_value(); });
  EXPECT_EQ(result->error().reason, "config_read_timeout");
  EXPECT_FALSE(reader.reading());
  gated_->release.set_value();
}

TEST_F(ConfigReaderTest, ARequestDuringAReadIsAnsweredByAnotherRead) {
  ConfigReader reader(&loop_, Reading(), 60'000);
  std::optional<Result<Config>> first;
  std::optional<Result<Config>> second;
  reader.Start(Into(&first));
  reader.Start(Into(&second));
  gated_->release.set_value();
  loop_.RunUntil([&] { return second.has_value(); });
  EXPECT_TRUE(first.has_value());
  EXPECT_EQ(gated_->reads, 2);
}

TEST_F(ConfigReaderTest, MayGoDuringARead) {
  auto reader = std::make_unique<ConfigReader>(&loop_, Reading(), 60'000);
  std::optional<Result<Config>> result;
  reader->Start(Into(&result));
  WaitForTheRead();
  reader.reset();
  gated_->release.set_value();
  EXPECT_FALSE(result.has_value());
}

}  // namespace
}  // namespace kvtier
