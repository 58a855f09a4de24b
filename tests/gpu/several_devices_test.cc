// SPDX-License-Identifier: Apache-2.0
// One daemon with pools on several devices: two GPUs where there are two, else a GPU and host
// memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <optional>
#include <thread>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/executor.h"
#include "base/units.h"
#include "gpu/cuda_device.h"
#include "tests/gpu/gpu_daemon_fixture.h"
#include "tests/gpu/seeded_bytes.h"
#include "tests/integration/harness/plain_client.h"
#include "tools/replay/replay_client.h"

namespace kvtier {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint64_t kBlockBytes = 64 * kKiB;
constexpr size_t kBlocks = 40;

class SeveralDevicesTest : public GpuDaemonFixture {
 protected:
  // With `more` settings, among them which devices.
  [[nodiscard]] static std::vector<std::string> Settings(std::vector<std::string> more) {
    std::vector<std::string> settings = {"pool.bytes=24MiB",          "host.bytes=48MiB",
                                         "disk.bytes=512MiB",         "cache.slab_bytes=2MiB",
                                         "disk.free_floor_bytes=0B",  "cache.max_wait_ms=5000",
                                         "retention.persist_after=0s"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  void StartDaemon() { GpuDaemonFixture::StartDaemon(Settings({TwoDevices()})); }
  // The last device is a GPU.
  [[nodiscard]] std::string GpuLast() const {
    return gpus_ > 1 ? TwoDevices() : R"(pool.device=["host", "cuda:0"])";
  }

  [[nodiscard]] ReplayTarget Target(uint32_t device) const {
    ReplayTarget target;
    target.socket = daemon_->socket();
    target.block_bytes = kBlockBytes;
    target.device = device;
    return target;
  }
  // Request `number` of a conversation, of which all have a part of their blocks in common.
  static TraceRequest Prompt(uint64_t number) {
    TraceRequest request;
    request.input_tokens = kBlocks * kBlockTokens;
    for (uint64_t i = 0; i < kBlocks; ++i) {
      ByteWriter writer;
      writer.Write(i < kBlocks / 2 ? uint64_t{0} : number + 1);
      writer.Write(i);
      request.hashes.push_back(Sha256(writer.data()));
    }
    return request;
  }
  // Plays requests on a device; every byte that it is served is checked.
  ReplayReport PlayOn(uint32_t device, uint64_t first, uint64_t count) {
    auto client = ReplayClient::Connect(Target(device), kBlockTokens);
    EXPECT_TRUE(client) << client.error().ToString();
    if (!client) return {};
    for (uint64_t number = first; number < first + count; ++number) {
      EXPECT_TRUE(client->Play(Prompt(number)));
    }
    return client->Finish();
  }

  kvt::Connection ConnectPlainly() { return ConnectTo(daemon_->socket()); }
};

TEST_F(SeveralDevicesTest, WhatIsComputedOnOneIsServedOnTheOther) {
  StartDaemon();
  EXPECT_EQ(PlayOn(0, 1, 1).blocks.miss, kBlocks);
  for (const uint32_t device : {1, 0, 1}) {
    const ReplayReport report = PlayOn(device, 1, 1);
    EXPECT_EQ(report.blocks.miss, 0u) << device;
    EXPECT_EQ(report.wrong_blocks, 0u) << device;
  }
}

// Three tiers in use, and the same blocks on both devices at once.
TEST_F(SeveralDevicesTest, ReplicasGetTheRightBytesFromAllTiers) {
  StartDaemon();
  constexpr uint64_t kRequests = 150;
  std::array<ReplayReport, 4> reports;
  std::vector<std::thread> clients;
  for (size_t i = 0; i < reports.size(); ++i) {
    clients.emplace_back([&, i] { reports[i] = PlayOn(i % 2, i / 2 * 20, kRequests); });
  }
  for (std::thread& client : clients) client.join();
  uint64_t asked = 0;
  for (const ReplayReport& report : reports) {
    EXPECT_EQ(report.wrong_blocks, 0u);
    asked += report.blocks.hit[0] + report.blocks.hit[1] + report.blocks.hit[2];
  }
  EXPECT_GT(asked, 0u);
}

TEST_F(SeveralDevicesTest, TheCurrentGpuIsFoundByItsUuid) {
  StartDaemon();
  BlockingLoop loop;
  for (int ordinal = 0; ordinal < std::min(gpus_, 2); ++ordinal) {
    // Its context is current on this thread from here on.
    const auto device = OpenCudaDevice({.ordinal = ordinal}, &loop);
    ASSERT_TRUE(device) << device.error().ToString();
    kvt::Connection connection = ConnectPlainly();
    const auto devices = connection.Devices();
    ASSERT_TRUE(devices);
    EXPECT_TRUE(std::ranges::equal((*devices)[ordinal].uuid, (*device)->info().uuid));
    const auto pool = connection.Attach(RegisterTinyModel(&connection), 0, KVT_ANY_DEVICE);
    ASSERT_TRUE(pool) << pool.error().ToString();
    const auto mapping = pool->MapDevice();
    ASSERT_TRUE(mapping) << mapping.error().ToString();
    EXPECT_EQ(mapping->ordinal, ordinal);
  }
}

// Copies all of `host` into the pool or back, and says how fast it was.
double CopyRate(Device* device, DevicePool* pool, CopyDirection direction,
                std::span<std::byte> host, BlockingLoop* loop) {
  std::optional<Status> outcome;
  CopyRequest request{.pool = pool, .direction = direction};
  for (uint64_t offset = 0; offset < host.size(); offset += 2 * kMiB) {
    request.copies.push_back({offset, host.data() + offset, 2 * kMiB});
  }
  request.done = [&](Status status) { outcome = std::move(status); };
  const auto begun = std::chrono::steady_clock::now();
  device->Copy(std::move(request));
  loop->RunUntil([&] { return outcome.has_value(); });
  EXPECT_TRUE(*outcome) << outcome->error().ToString();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
  return static_cast<double>(host.size()) / taken.count() / 1e9;
}

TEST_F(SeveralDevicesTest, HostMemoryPinnedOnceIsPinnedForEachGpu) {
  if (gpus_ < 2) GTEST_SKIP() << "takes two GPUs";
  constexpr uint64_t kBytes = 1 * kGiB;
  BlockingLoop loop;
  const std::shared_ptr<HostPinner> pinner = MakeCudaHostPinner();
  const auto first = OpenCudaDevice({.ordinal = 0, .pinner = pinner}, &loop);
  ASSERT_TRUE(first) << first.error().ToString();
  AlignedBuffer buffer(kBytes);
  ASSERT_TRUE(pinner->Pin(buffer.span()));
  for (int ordinal : {0, 1}) {
    const auto device = OpenCudaDevice({.ordinal = ordinal, .pinner = pinner}, &loop);
    ASSERT_TRUE(device) << device.error().ToString();
    const auto pool = (*device)->CreatePool(kBytes);
    ASSERT_TRUE(pool) << pool.error().ToString();
    (*pool)->AwaitReady();
    FillFromSeed(ordinal, buffer.span());
    const double up =
        CopyRate(device->get(), pool->get(), CopyDirection::kHostToPool, buffer.span(), &loop);
    std::ranges::fill(buffer.span(), std::byte{});
    const double down =
        CopyRate(device->get(), pool->get(), CopyDirection::kPoolToHost, buffer.span(), &loop);
    fmt::print("cuda:{}: {:.1f} GB/s up, {:.1f} GB/s down\n", ordinal, up, down);
    std::vector<std::byte> expected(kBytes);
    FillFromSeed(ordinal, expected);
    EXPECT_TRUE(std::ranges::equal(buffer.span(), expected));
    // Memory that is not pinned is copied through a bounce buffer, at a fraction of this.
    EXPECT_GT(up, 20.0);
    EXPECT_GT(down, 20.0);
  }
  pinner->Unpin(buffer.span());
}

// Blocks of 2 MiB, as loads copy them, and one copy of all of them.
TEST_F(SeveralDevicesTest, AGpuCopiesFromItsNeighboursPool) {
  if (gpus_ < 2) GTEST_SKIP() << "needs two GPUs";
  constexpr uint64_t kBytes = 1 * kGiB;
  BlockingLoop loop;
  const auto holder = OpenCudaDevice({.ordinal = 0}, &loop);
  const auto reader = OpenCudaDevice({.ordinal = 1}, &loop);
  ASSERT_TRUE(holder && reader);
  if (!CanReadFrom((*reader)->info(), (*holder)->info())) GTEST_SKIP() << "no P2P between them";
  const auto source = (*holder)->CreatePool(kBytes);
  const auto target = (*reader)->CreatePool(kBytes);
  ASSERT_TRUE(source && target);
  (*source)->AwaitReady();
  (*target)->AwaitReady();
  AlignedBuffer buffer(kBytes);
  FillFromSeed(5, buffer.span());
  const std::vector<std::byte> expected(buffer.span().begin(), buffer.span().end());
  (void)CopyRate(holder->get(), source->get(), CopyDirection::kHostToPool, buffer.span(), &loop);
  const auto rate = [&](uint64_t piece) {
    CopyRequest request{
        .pool = target->get(), .source = source->get(), .direction = CopyDirection::kPoolToPool};
    for (uint64_t at = 0; at < kBytes; at += piece) {
      request.copies.push_back({at, (*source)->data() + at, piece});
    }
    std::optional<Status> outcome;
    request.done = [&](Status status) { outcome = std::move(status); };
    const auto begun = std::chrono::steady_clock::now();
    (*reader)->Copy(std::move(request));
    loop.RunUntil([&] { return outcome.has_value(); });
    EXPECT_TRUE(*outcome) << outcome->error().ToString();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    return kBytes / took.count() / 1e9;
  };
  (void)rate(kBytes);  // the first maps the memory
  const double whole = rate(kBytes);
  const double blocks = rate(2 * kMiB);
  fmt::print("cuda:0 to cuda:1: {:.1f} GB/s in one copy, {:.1f} in blocks\n", whole, blocks);
  EXPECT_GT(blocks, 0.7 * whole);
  (void)CopyRate(reader->get(), target->get(), CopyDirection::kPoolToHost, buffer.span(), &loop);
  EXPECT_TRUE(std::ranges::equal(buffer.span(), expected));
}

TEST_F(SeveralDevicesTest, APoolLargerThanItsGpuIsAnErrorThatNamesTheGpu) {
  const int last = gpus_ > 1 ? 1 : 0;
  const auto daemon =
      PrivateDaemon::Start(OptionsWith(Settings({GpuLast(), R"(pool.bytes=["24MiB", "100TiB"])"})));
  ASSERT_FALSE(daemon);
  EXPECT_NE(daemon.error().context.find("pool_exceeds_vram"), std::string::npos)
      << daemon.error().context;
  EXPECT_NE(daemon.error().context.find(fmt::format("cuda:{}", last)), std::string::npos)
      << daemon.error().context;
}

// All but about 4 GiB of the first GPU, held by this process.
TEST_F(SeveralDevicesTest, MemoryThatOthersHoldIsTheAttachsErrorAndHadOnceItIsFree) {
  BlockingLoop loop;
  const auto device = OpenCudaDevice({}, &loop);
  ASSERT_TRUE(device) << device.error().ToString();
  auto others = (*device)->CreatePool((*device)->info().free_bytes - 4 * kGiB);
  ASSERT_TRUE(others) << others.error().ToString();
  GpuDaemonFixture::StartDaemon({"pool.device=cuda:0", "pool.bytes=8GiB", "host.bytes=64MiB"});
  kvt::Connection connection = ConnectPlainly();
  const uint32_t model = RegisterTinyModel(&connection);
  EXPECT_EQ(connection.Attach(model, 8 * kGiB, 0).error().code, KVT_RESOURCE_EXHAUSTED);
  others->reset();
  const auto attached = connection.Attach(model, 8 * kGiB, 0);
  EXPECT_TRUE(attached) << attached.error().ToString();
}

// A context takes hundreds of MiB of a GPU, which are the engines' until one of them attaches.
TEST_F(SeveralDevicesTest, NoMemoryOfAGpuIsTakenBeforeAClientAttaches) {
  const auto free_mib = [] { return static_cast<int64_t>(FreeVramOf(0).value() / kMiB); };
  const int64_t before = free_mib();
  GpuDaemonFixture::StartDaemon({"pool.device=all", "pool.bytes=64MiB", "host.bytes=256MiB"});
  EXPECT_NEAR(free_mib(), before, 16) << "MiB";
  kvt::Connection connection = ConnectPlainly();
  const auto attached = connection.Attach(RegisterTinyModel(&connection), 0, 0);
  ASSERT_TRUE(attached) << attached.error().ToString();
  EXPECT_LT(free_mib(), before - 100) << "MiB";
}

class DeviceSequenceTest : public SeveralDevicesTest {
 protected:
  void SetUp() override {
    SeveralDevicesTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    StartDaemon();
    connection_.emplace(ConnectPlainly());
    auto pool = connection_->Attach(RegisterTinyModel(&*connection_), 0, 0);
    ASSERT_TRUE(pool) << pool.error().ToString();
    pool_.emplace(*std::move(pool));
    tokens_.resize(kBlockTokens + 5);
    std::iota(tokens_.begin(), tokens_.end(), 100);
  }
  void TearDown() override {
    pool_.reset();
    connection_.reset();
  }
  [[nodiscard]] kvt_block BlockAt(int32_t index) const {
    return {static_cast<uint32_t>(index), 0, pool_->Info().attachment};
  }
  std::vector<std::byte> BytesOf(int32_t index) const {
    std::vector<std::byte> bytes(pool_->Info().block_bytes);
    EXPECT_TRUE(pool_->Read(BlockAt(index), bytes));
    return bytes;
  }
  // A sequence of one full and one partial block, whose bytes are known.
  kvt::Sequence Computed() {
    auto sequence = pool_->OpenSequence(tokens_);
    EXPECT_TRUE(sequence) << sequence.error().ToString();
    const auto table = sequence->BlockTable();
    for (size_t i = 0; i < table->size(); ++i) {
      std::vector<std::byte> bytes(pool_->Info().block_bytes, std::byte(17 + i));
      EXPECT_TRUE(pool_->Write(BlockAt((*table)[i]), bytes));
    }
    EXPECT_TRUE(sequence->MarkComputed(tokens_.size()));
    return *std::move(sequence);
  }

  std::optional<kvt::Connection> connection_;
  std::optional<kvt::Pool> pool_;
  std::vector<uint32_t> tokens_;
};

TEST_F(DeviceSequenceTest, ACommittedTailIsCopiedOnTheGpuBeforeItGrows) {
  kvt::Sequence sequence = Computed();
  ASSERT_TRUE(sequence.Finish());
  const int32_t tail = sequence.BlockTable()->back();
  const uint32_t next = 7;
  const auto appended = sequence.Append({&next, 1});
  ASSERT_TRUE(appended) << appended.error().ToString();
  const int32_t copy = sequence.BlockTable()->back();
  EXPECT_NE(copy, tail);
  EXPECT_EQ(BytesOf(copy), BytesOf(tail));
  EXPECT_EQ(BytesOf(copy).back(), std::byte(18));
}

TEST_F(DeviceSequenceTest, AForkHasPrivateBlocksOfItsOwn) {
  kvt::Sequence sequence = Computed();
  auto fork = sequence.Fork();
  ASSERT_TRUE(fork) << fork.error().ToString();
  EXPECT_EQ(fork->BlockTable()->front(), sequence.BlockTable()->front());
  const int32_t ours = sequence.BlockTable()->back();
  const int32_t theirs = fork->BlockTable()->back();
  EXPECT_NE(ours, theirs);
  EXPECT_EQ(BytesOf(theirs), BytesOf(ours));
}

TEST_F(DeviceSequenceTest, ACachedTailIsCopiedForWhoGoesOnFromIt) {
  {
    kvt::Sequence sequence = Computed();
    ASSERT_TRUE(sequence.Finish());
  }
  ASSERT_TRUE(connection_->Flush());
  std::vector<uint32_t> longer = tokens_;
  longer.push_back(9);
  auto sequence = pool_->OpenSequence(longer);
  ASSERT_TRUE(sequence) << sequence.error().ToString();
  ASSERT_TRUE(sequence->Wait());
  EXPECT_EQ(sequence->cached_tokens(), tokens_.size());
  EXPECT_EQ(BytesOf(sequence->BlockTable()->back()).front(), std::byte(18));
}

}  // namespace
}  // namespace kvtier
