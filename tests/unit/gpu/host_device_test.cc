// SPDX-License-Identifier: Apache-2.0
#include "gpu/host_device.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/result.h"
#include "base/units.h"

namespace kvtier {
namespace {

// A pool as a client sees it: mapped from its descriptor.
class ClientView {
 public:
  explicit ClientView(const DevicePool& pool) : bytes_(pool.bytes()) {
    void* address =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, pool.shareable_fd(), 0);
    KVT_CHECK(address != MAP_FAILED);
    data_ = static_cast<std::byte*>(address);
  }
  ~ClientView() { ::munmap(data_, bytes_); }
  ClientView(const ClientView&) = delete;
  ClientView& operator=(const ClientView&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  uint64_t bytes_;
  std::byte* data_;
};

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class HostDeviceTest : public ::testing::Test {
 protected:
  std::unique_ptr<DevicePool> MakePool(uint64_t bytes) {
    auto pool = device_.CreatePool(bytes);
    KVT_CHECK(pool.has_value());
    return std::move(*pool);
  }
  Status CopyAndWait(CopyRequest request) {
    std::optional<Status> outcome;
    request.done = [&](Status status) { outcome = std::move(status); };
    device_.Copy(std::move(request));
    loop_.RunUntil([&] { return outcome.has_value(); });
    return *outcome;
  }

  BlockingLoop loop_;
  HostDevice device_{&loop_, 3};
};

TEST_F(HostDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(device_.info().kind, "host");
  EXPECT_GT(device_.info().total_bytes, 0u);
}

TEST_F(HostDeviceTest, CopiesBothWaysWhatClientsSee) {
  const auto pool = MakePool(8 * kMiB);
  const ClientView client(*pool);
  std::vector<std::byte> host = RandomBytes(5 * kMiB + 123, 1);
  ASSERT_TRUE(CopyAndWait({.pool = pool.get(),
                           .direction = CopyDirection::kHostToPool,
                           .copies = {{777, host.data(), host.size()}}}));
  EXPECT_TRUE(std::ranges::equal(client.bytes().subspan(777, host.size()), host));
  EXPECT_EQ(client.bytes()[776], std::byte{0});
  EXPECT_EQ(client.bytes()[777 + host.size()], std::byte{0});

  std::vector<std::byte> back(host.size());
  ASSERT_TRUE(CopyAndWait({.pool = pool.get(),
                           .direction = CopyDirection::kPoolToHost,
                           .copies = {{777, back.data(), back.size()}}}));
  EXPECT_EQ(back, host);
}

TEST_F(HostDeviceTest, CopiesFromThePoolOfAnotherDevice) {
  HostDevice other(&loop_, 1);
  const auto source = other.CreatePool(kMiB);
  ASSERT_TRUE(source);
  const auto target = MakePool(kMiB);
  const auto bytes = RandomBytes(kMiB, 7);
  std::ranges::copy(bytes, ClientView(**source).bytes().begin());
  CopyRequest request{.pool = target.get(),
                      .source = source->get(),
                      .direction = CopyDirection::kPoolToPool,
                      .copies = {{.pool_offset = 4096, .host = (*source)->data(), .bytes = 8192}}};
  ASSERT_TRUE(CopyAndWait(request));
  EXPECT_TRUE(std::ranges::equal(ClientView(*target).bytes().subspan(4096, 8192),
                                 std::span(bytes).first(8192)));
  // Beyond the end of the source.
  request.copies[0].host = (*source)->data() + kMiB - 4096;
  const Status refused = CopyAndWait(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, "copy_out_of_bounds");
}

TEST_F(HostDeviceTest, OneRequestMayHoldManyCopiesOfAllSizes) {
  const auto pool = MakePool(16 * kMiB);
  const ClientView client(*pool);
  const std::vector<std::byte> host = RandomBytes(16 * kMiB, 2);
  std::vector<std::byte> expected(16 * kMiB);
  std::mt19937 random(3);
  CopyRequest request{.pool = pool.get(), .direction = CopyDirection::kHostToPool};
  for (uint64_t offset = 0; offset < 15 * kMiB;) {
    const uint64_t bytes = random() % 5 == 0 ? random() % (2 * kMiB) : random() % (100 * kKiB);
    const uint64_t count = std::min<uint64_t>(bytes, 15 * kMiB - offset);
    request.copies.push_back({offset, const_cast<std::byte*>(host.data()) + offset, count});
    std::memcpy(expected.data() + offset, host.data() + offset, count);
    offset += count + random() % 1000;
  }
  ASSERT_TRUE(CopyAndWait(std::move(request)));
  EXPECT_TRUE(std::ranges::equal(client.bytes(), expected));
}

TEST_F(HostDeviceTest, ARequestOfNothingIsDone) {
  const auto pool = MakePool(4096);
  EXPECT_TRUE(CopyAndWait({.pool = pool.get()}));
  std::byte byte{};
  EXPECT_TRUE(CopyAndWait({.pool = pool.get(), .copies = {{4096, &byte, 0}}}));
}

TEST_F(HostDeviceTest, CopiesBeyondThePoolAreRefusedWhole) {
  const auto pool = MakePool(kMiB);
  std::vector<std::byte> host(8192);
  for (const uint64_t offset : {kMiB - 4096, kMiB, UINT64_MAX - 100, UINT64_MAX}) {
    const Status status = CopyAndWait({.pool = pool.get(),
                                       .direction = CopyDirection::kHostToPool,
                                       .copies = {{offset, host.data(), host.size()}}});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(status.error().reason, "copy_out_of_bounds");
  }
}

TEST_F(HostDeviceTest, NobodyCanResizeAPool) {
  const auto pool = MakePool(kMiB);
  EXPECT_EQ(::ftruncate(pool->shareable_fd(), 0), -1);
  EXPECT_EQ(::ftruncate(pool->shareable_fd(), 2 * kMiB), -1);
  EXPECT_EQ(::fcntl(pool->shareable_fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_NE(::fcntl(pool->shareable_fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(HostDeviceTest, MappingsOutliveThePool) {
  auto pool = MakePool(kMiB);
  const ClientView client(*pool);
  client.bytes()[5] = std::byte{9};
  pool.reset();
  EXPECT_EQ(client.bytes()[5], std::byte{9});
}

TEST_F(HostDeviceTest, TheMemoryOfADiscardedPoolReturnsThoughAClientHasItMapped) {
  const auto pool = MakePool(4 * kMiB);
  const ClientView view(*pool);
  std::ranges::fill(view.bytes(), std::byte{7});
  pool->Discard();
  struct stat file {};
  ASSERT_EQ(::fstat(pool->shareable_fd(), &file), 0);
  EXPECT_EQ(file.st_blocks, 0) << "the kernel keeps no page of it";
  EXPECT_EQ(view.bytes().front(), std::byte{0}) << "reading it ends no process";
}

TEST_F(HostDeviceTest, ImpossiblePoolsAreRefused) {
  EXPECT_EQ(device_.CreatePool(0).error().reason, "empty_pool");
  const auto pool = device_.CreatePool(uint64_t{1} << 50);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(pool.error().reason, "pool_exceeds_memory");
}

// Holds the copy thread that posts the first event until the gate opens.
class GatedLoop final : public EventQueue {
 public:
  void Post(std::function<void()> event) override {
    loop.Post(std::move(event));
    gate_.wait();
  }
  void Open() { open_.set_value(); }
  BlockingLoop loop;

 private:
  std::promise<void> open_;
  std::shared_future<void> gate_ = open_.get_future().share();
};

TEST(HostDeviceOrderTest, UrgentRequestsGoFirstAndEqualsInOrder) {
  GatedLoop gated;
  HostDevice device(&gated, 1);
  const auto pool = device.CreatePool(4 * kMiB);
  ASSERT_TRUE(pool);
  std::vector<std::byte> host(4 * kMiB);
  std::vector<int> finished;
  const auto copy = [&](int number, CopyPriority priority, uint64_t bytes) {
    device.Copy({.pool = pool->get(),
                 .direction = CopyDirection::kPoolToHost,
                 .priority = priority,
                 .copies = {{0, host.data(), bytes}},
                 .done = [&finished, number](Status) { finished.push_back(number); }});
  };
  copy(0, CopyPriority::kBackground, 4096);
  gated.loop.RunUntil([&] { return finished.size() == 1; });
  copy(1, CopyPriority::kBackground, 4 * kMiB);
  copy(2, CopyPriority::kBackground, 4096);
  copy(3, CopyPriority::kPrefetch, 2 * kMiB);
  copy(4, CopyPriority::kDemand, 4096);
  copy(5, CopyPriority::kDemand, 4096);
  gated.Open();
  gated.loop.RunUntil([&] { return finished.size() == 6; });
  EXPECT_EQ(finished, (std::vector<int>{0, 4, 5, 3, 1, 2}));
}

TEST(HostDeviceOrderTest, ClosingEndsEveryRequestExactlyOnce) {
  BlockingLoop loop;
  std::vector<std::byte> host(32 * kMiB);
  int done = 0;
  {
    std::unique_ptr<DevicePool> pool;
    HostDevice device(&loop, 2);
    pool = std::move(*device.CreatePool(32 * kMiB));
    for (int i = 0; i < 20; ++i) {
      device.Copy({.pool = pool.get(),
                   .direction = CopyDirection::kPoolToHost,
                   .priority = CopyPriority::kBackground,
                   .copies = {{0, host.data(), host.size()}},
                   .done = [&](Status status) {
                     done += 1;
                     if (!status) {
                       EXPECT_EQ(status.error().reason, "device_closed");
                     }
                   }});
    }
  }
  loop.RunPosted();
  EXPECT_EQ(done, 20);
}

TEST_F(HostDeviceTest, CopiesAreCountedWithoutTheEventLoop) {
  const auto page = CounterPage::Create().value();
  const auto counter = page->Open(20);
  const auto pool = MakePool(20 * kMiB);
  const std::vector<std::byte> bytes = RandomBytes(20 * kMiB, 1);
  const ClientView view(*pool);
  int done = 0;
  for (uint32_t i = 0; i < 20; ++i) {
    device_.Copy({.pool = pool.get(),
                  .direction = CopyDirection::kHostToPool,
                  .copies = {{i * kMiB, const_cast<std::byte*>(bytes.data()) + i * kMiB, kMiB}},
                  .counted = {{counter, i + 1}},
                  .done = [&](const Status&) { ++done; }});
  }
  auto* const word = reinterpret_cast<uint32_t*>(page->memory().data() + counter->offset());
  // Two threads copy: the counted chunks are a prefix nevertheless.
  for (uint32_t seen = 0; seen < 20;) {
    seen = std::atomic_ref(*word).load(std::memory_order_acquire) - counter->base();
    ASSERT_EQ(std::memcmp(view.bytes().data(), bytes.data(), seen * kMiB), 0) << seen;
  }
  EXPECT_EQ(done, 0);
  loop_.RunUntil([&] { return done == 20; });
}

}  // namespace
}  // namespace kvtier
