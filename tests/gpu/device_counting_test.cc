// SPDX-License-Identifier: Apache-2.0
// Counters that the GPU's streams write and wait for.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "client/cuda/stream_waits.h"
#include "gpu/counter_page.h"
#include "tests/gpu/device_fixture.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = 8 * kMiB;
constexpr auto kPatience = std::chrono::seconds(20);

class DeviceCountingTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    if (IsSkipped()) return;
    OpenDevice();
    pool_ = MakePool(kBytes);
    host_ = std::make_unique<PinnedBuffer>(device_.get(), kBytes);
    page_ = CounterPage::Create().value();
  }
  void TearDown() override {
    host_.reset();
    pool_.reset();
    device_.reset();
  }

  // Copies one MiB up, counting.
  void CopyUp(uint64_t offset, const std::shared_ptr<StepCounter>& counter, uint32_t done) {
    ++under_way_;
    device_->Copy({.pool = pool_.get(),
                   .direction = CopyDirection::kHostToPool,
                   .copies = {{offset, host_->data() + offset, kMiB}},
                   .counted = {{counter, done}},
                   .done = [this](const Status& status) {
                     EXPECT_TRUE(status);
                     --under_way_;
                   }});
  }
  [[nodiscard]] uint32_t Done(const StepCounter& counter) const {
    auto* const word = reinterpret_cast<uint32_t*>(page_->memory().data() + counter.offset());
    return std::atomic_ref(*word).load() - counter.base();
  }
  [[nodiscard]] bool Reaches(const StepCounter& counter, uint32_t done) const {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (Done(counter) < done && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    return Done(counter) >= done;
  }

  std::unique_ptr<DevicePool> pool_;
  std::unique_ptr<PinnedBuffer> host_;
  std::shared_ptr<CounterPage> page_;
  int under_way_ = 0;
};

TEST_F(DeviceCountingTest, CopiesAreCountedWithoutTheEventLoop) {
  const auto counter = page_->Open(3);
  for (uint32_t i = 0; i < 3; ++i) CopyUp(i * kMiB, counter, i + 1);
  // Nothing that was posted has run.
  EXPECT_TRUE(Reaches(*counter, 3));
  EXPECT_EQ(Done(*counter), 3u);
  EXPECT_EQ(under_way_, 3);
  loop_.RunUntil([&] { return under_way_ == 0; });
}

TEST_F(DeviceCountingTest, CopiesQueuedTogetherAreCountedInOrder) {
  const auto first = page_->Open(4);
  const auto second = page_->Open(4);
  for (uint32_t i = 0; i < 4; ++i) {
    CopyUp(2 * i * kMiB, first, i + 1);
    CopyUp((2 * i + 1) * kMiB, second, i + 1);
  }
  EXPECT_TRUE(Reaches(*second, 4));
  EXPECT_EQ(Done(*first), 4u);
  EXPECT_EQ(Done(*second), 4u);
  loop_.RunUntil([&] { return under_way_ == 0; });
}

// The engine may be the last to know of a load; its late writes must not reach the next load in the
// slot.
TEST_F(DeviceCountingTest, ASlotIsNotWrittenToWhenItsLoadIsOver) {
  for (uint32_t round = 0; round < 200; ++round) {
    auto counter = page_->Open(1);
    const uint32_t offset = counter->offset();
    CopyUp(0, counter, 1);
    counter.reset();
    loop_.RunUntil([&] { return under_way_ == 0; });
    const auto next = page_->Open(1);
    ASSERT_EQ(next->offset(), offset);
    ASSERT_EQ(Done(*next), 0u) << round;
    CopyUp(0, next, 0);  // counts nothing, and lands behind all that was under way
    loop_.RunUntil([&] { return under_way_ == 0; });
    ASSERT_EQ(Done(*next), 0u) << round;
  }
}

TEST_F(DeviceCountingTest, WhatIsCountedHasArrived) {
  const auto mapping = Map(*pool_);
  std::vector<std::byte> seen(kMiB);
  for (uint32_t round = 1; round <= 50; ++round) {
    std::memset(host_->data(), static_cast<int>(round), kMiB);
    const auto counter = page_->Open(1);
    CopyUp(0, counter, 1);
    ASSERT_TRUE(Reaches(*counter, 1));
    ASSERT_TRUE(mapping->Read(0, seen.data(), seen.size()));
    ASSERT_EQ(std::memcmp(seen.data(), host_->data(), kMiB), 0) << round;
    loop_.RunUntil([&] { return under_way_ == 0; });
  }
}

TEST_F(DeviceCountingTest, AStreamWaitsForTheCounterAndThenSeesTheBytes) {
  const auto waits = client::StreamWaits::Open(page_->fd(), page_->memory().size(), 0);
  ASSERT_TRUE(waits) << waits.error().ToString();
  const auto mapping = Map(*pool_);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  std::memset(host_->data(), 0x5a, kMiB);
  const auto counter = page_->Open(1);
  ASSERT_TRUE((*waits)->Wait(stream, counter->offset(), counter->ValueOf(1)));
  // To pinned memory, or the call itself would wait.
  std::byte* const seen = host_->data() + kMiB;
  ASSERT_EQ(cudaMemcpyAsync(seen, reinterpret_cast<void*>(mapping->address()), kMiB,
                            cudaMemcpyDeviceToHost, stream),
            cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  CopyUp(0, counter, 1);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(std::memcmp(seen, host_->data(), kMiB), 0);
  loop_.RunUntil([&] { return under_way_ == 0; });
  (void)cudaStreamDestroy(stream);
}

TEST_F(DeviceCountingTest, AStreamGoesOnWhenTheLoadHasEnded) {
  const auto waits = client::StreamWaits::Open(page_->fd(), page_->memory().size(), 0);
  ASSERT_TRUE(waits) << waits.error().ToString();
  const auto counter = page_->Open(4);
  ASSERT_TRUE((*waits)->Wait(nullptr, counter->offset(), counter->ValueOf(4)));
  counter->End();
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

TEST_F(DeviceCountingTest, AWaitOfAnEarlierLoadIsOverWhenItsSlotIsUsedAgain) {
  const auto waits = client::StreamWaits::Open(page_->fd(), page_->memory().size(), 0);
  ASSERT_TRUE(waits) << waits.error().ToString();
  auto counter = page_->Open(4);
  const uint32_t offset = counter->offset();
  const uint32_t last = counter->ValueOf(4);
  counter.reset();
  counter = page_->Open(9);
  ASSERT_EQ(counter->offset(), offset);
  ASSERT_TRUE((*waits)->Wait(nullptr, offset, last));
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

}  // namespace
}  // namespace kvtier
