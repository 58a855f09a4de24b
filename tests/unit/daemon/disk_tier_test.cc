// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/disk_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "base/units.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {
namespace {

// Checksums of blocks wait for its one thread.
class CountingExecutor final : public Executor {
 public:
  explicit CountingExecutor(EventQueue* loop) : executor_("test", 1, loop) {}
  void Run(std::function<void()> work, std::function<void()> done) override {
    ++runs_;
    executor_.Run(std::move(work), std::move(done));
  }
  [[nodiscard]] int runs() const { return runs_; }

 private:
  ThreadExecutor executor_;
  int runs_ = 0;
};

class DiskTierTest : public testing::Test {
 protected:
  DiskTierTest() {
    config_.cache.slab_bytes = 128 * kKiB;
    config_.disk.bytes = 8 * kMiB;
    config_.disk.free_floor_bytes = 0;
    config_.disk.encryption = DiskEncryption::kAes256Gcm;
    config_.disk.root_key = directory_.path() / "root";
    std::ofstream(config_.disk.root_key) << std::string(32, 'a');
    EXPECT_EQ(::chmod(config_.disk.root_key.c_str(), 0400), 0);
    for (const char* const name : {"one", "two"}) {
      const std::filesystem::path drive = directory_.path() / name;
      EXPECT_EQ(::mkdir(drive.c_str(), 0700), 0);
      config_.disk.directories.push_back(drive);
    }
  }

  const TestDirectory directory_;
  Config config_;
  FakeClock clock_;
  EventLoop loop_;
  Log log_{{.level = LogLevel::kError}};
  ServiceManager manager_;
  CountingExecutor executor_{&loop_};
};

// A file system that does not answer holds up no block on its way out of a pool.
TEST_F(DiskTierTest, AsksFileSystemsOnThreadsOfItsOwn) {
  auto opened = DiskTier::Open(config_, clock_, &loop_, &executor_, &log_, &manager_,
                               [] { return std::optional<UniqueFd>(); });
  ASSERT_TRUE(opened) << opened.error().ToString();
  DiskTier& tier = **opened;
  CacheEnvironment environment;
  (void)tier.Join(&environment);
  tier.Watch([](uint32_t, const std::string&, bool) { return true; });

  clock_.Advance(DiskWatch::kLookEveryMs);
  tier.Tick();
  int ended = 0;
  tier.FindGone([&](const std::optional<std::filesystem::path>&) { ++ended; });
  DriveSlabs wanted{};
  wanted[0] = wanted[1] = 4;
  DriveSlabs got{};
  tier.Resize(wanted, [&](const DriveSlabs& slabs) {
    got = slabs;
    ++ended;
  });
  ASSERT_TRUE(environment.keys->ForSlot("tenant", 1));
  environment.keys->WhenStored([&](const Status& stored) {
    EXPECT_TRUE(stored);
    ++ended;
  });
  loop_.RunUntil([&] { return ended == 3 && tier.idle(); });
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(executor_.runs(), 0);
}

}  // namespace
}  // namespace kvtier
