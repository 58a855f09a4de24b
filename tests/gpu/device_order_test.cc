// SPDX-License-Identifier: Apache-2.0
// Which copies go first, how fast they may go, and what happens to them at the end.
#include <chrono>

#include "tests/gpu/device_fixture.h"

namespace kvtier {
namespace {

class DeviceOrderTest : public CudaDeviceTest {
 protected:
  // Downwards, so that all use one stream.
  void Copy(int number, CopyPriority priority, uint64_t bytes) {
    CopyWith(device_.get(), number, priority, bytes);
  }
  void CopyWith(Device* device, int number, CopyPriority priority, uint64_t bytes) {
    device->Copy({.pool = pool_.get(),
                  .direction = CopyDirection::kPoolToHost,
                  .priority = priority,
                  .copies = {{0, host_->data(), bytes}},
                  .done = [this, number](const Status& status) {
                    statuses_.push_back(status);
                    finished_.push_back(number);
                  }});
  }
  void Open(CudaDeviceOptions options, uint64_t bytes) {
    OpenDevice(std::move(options));
    pool_ = MakePool(bytes);
    host_ = std::make_unique<PinnedBuffer>(device_.get(), bytes);
  }
  void TearDown() override {
    // In this order: the device outlives its pinned memory and its pools.
    host_.reset();
    pool_.reset();
    device_.reset();
  }

  std::unique_ptr<DevicePool> pool_;
  std::unique_ptr<PinnedBuffer> host_;
  std::vector<int> finished_;
  std::vector<Status> statuses_;
};

TEST_F(DeviceOrderTest, DemandOvertakesWhatCameBefore) {
  Open({.chunk_bytes = 4 * kMiB}, 1 * kGiB);
  // Some 20 ms of work, of which only a few chunks can be under way.
  Copy(1, CopyPriority::kBackground, 1 * kGiB);
  Copy(2, CopyPriority::kBackground, 4 * kMiB);
  Copy(3, CopyPriority::kPrefetch, 4 * kMiB);
  Copy(4, CopyPriority::kDemand, 4 * kMiB);
  Copy(5, CopyPriority::kDemand, 4 * kMiB);
  loop_.RunUntil([&] { return finished_.size() == 5; });
  EXPECT_EQ(finished_, (std::vector<int>{4, 5, 3, 1, 2}));
}

TEST_F(DeviceOrderTest, BackgroundKeepsToItsRateAndDemandDoesNot) {
  Open({.background_bytes_per_s = 256 * kMiB, .chunk_bytes = 4 * kMiB}, 64 * kMiB);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Copy(1, CopyPriority::kBackground, 64 * kMiB);
  Copy(2, CopyPriority::kDemand, 64 * kMiB);
  loop_.RunUntil([&] { return finished_.size() == 1; });
  EXPECT_EQ(finished_.front(), 2);
  EXPECT_LT(seconds(), 0.2);
  loop_.RunUntil([&] { return finished_.size() == 2; });
  // The last chunk starts when all before it have had their time.
  EXPECT_GT(seconds(), 0.9 * (64.0 - 4.0) / 256);
}

TEST_F(DeviceOrderTest, BackgroundThatIsAwaitedForgetsItsRate) {
  Open({.background_bytes_per_s = 16 * kMiB, .chunk_bytes = 4 * kMiB}, 64 * kMiB);
  const auto start = std::chrono::steady_clock::now();
  Copy(1, CopyPriority::kBackground, 64 * kMiB);
  Copy(2, CopyPriority::kDemand, 4 * kMiB);
  loop_.RunUntil([&] { return finished_.size() == 1; });
  // The engine sleeps until the next chunk may begin, an eighth of a second from now.
  device_->AwaitBackground(true);
  loop_.RunUntil([&] { return finished_.size() == 2; });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(200));
}

TEST_F(DeviceOrderTest, ClosingEndsEveryRequestExactlyOnce) {
  Open({}, 64 * kMiB);
  // A device of its own, so that the pool and the pinned memory outlive it.
  auto closing = OpenCudaDevice({.chunk_bytes = 1 * kMiB}, &loop_);
  ASSERT_TRUE(closing) << closing.error().ToString();
  for (int i = 0; i < 40; ++i) {
    CopyWith(closing->get(), i, CopyPriority::kBackground, 64 * kMiB);
  }
  closing->reset();
  loop_.RunPosted();
  ASSERT_EQ(statuses_.size(), 40u);
  for (const Status& status : statuses_) {
    if (!status) {
      EXPECT_EQ(status.error().reason, "device_closed");
    }
  }
  EXPECT_FALSE(statuses_.back());
}

}  // namespace
}  // namespace kvtier
