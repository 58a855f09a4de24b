// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/tiers/cache_fixture.h"

#include <algorithm>
#include <span>
#include <utility>

#include "tiers/index/index_start.h"

namespace kvtier {

CacheOptions CacheSetup::Options() {
  CacheOptions options;
  options.pool_clean_fraction = 0.25;
  options.host_clean_fraction = 0.25;
  options.disk_free_fraction = 0;
  options.persist_after_ms = 7 * 24 * 60 * 60 * 1000;
  options.layer_piece_bytes = 1;
  return options;
}

CacheTest::~CacheTest() {
  cache_.reset();
  if (machine_) machine_->loop.DropAll();
}

void CacheTest::Start(const CacheSetup& setup) {
  setup_ = setup;
  setup_.options.slab_bytes = kSlabBytes;
  setup_.options.pool_bytes = setup.pool_blocks * kBlockBytes;
  ASSERT_TRUE(setup_.options.Validate()) << setup_.options.Validate().error().ToString();
  MachineSizes sizes;
  sizes.devices = setup.devices;
  sizes.neighbours = setup.neighbours;
  sizes.slab_bytes = kSlabBytes;
  sizes.host_slabs = setup.host_slots / kSlotsPerSlab;
  sizes.host_slabs_ready = std::min(setup.host_slots, setup.host_slots_ready) / kSlotsPerSlab;
  sizes.keep_host = setup.keep_host;
  sizes.keep_pools = setup.keep_pools;
  sizes.disk_slabs = setup.disk_slots / kSlotsPerSlab;
  sizes.disk_files = setup.disk_slots == 0 ? 0 : setup.disk_files;
  machine_ = std::make_unique<FakeMachine>(sizes, /*seed=*/1);
  StartCache({});
}

void CacheTest::StartCache(IndexSnapshot snapshot) {
  CacheEnvironment environment = machine_->Environment();
  environment.tracer = setup_.tracer;
  environment.events = setup_.events;
  machine_->owner.pool_read = pool_read_;
  if (change_environment_) change_environment_(&environment, &snapshot);
  cache_ = std::make_unique<Cache>(setup_.options, std::move(environment), std::move(snapshot));
  for (const SessionId session : {kAlice, kBob}) {
    cache_->OpenSession(session, [this, session](const LoadProgress& p) {
      progress_.push_back(p);
      session_of_load_[p.load] = session;
    });
  }
  UseDevice(device_);
}

void CacheTest::UseDevice(uint32_t device) {
  Result<PoolInfo> pool = cache_->AttachPool(Identity("tenant", 1), 0, DeviceIndex(device));
  ASSERT_TRUE(pool) << pool.error().ToString();
  device_ = device;
  pool_ = *pool;
}

void CacheTest::CrashAndRestart() {
  cache_.reset();
  machine_->Crash();
  progress_.clear();
  StartCache(machine_->Snapshot());
}

void CacheTest::DieAndAdopt() {
  cache_.reset();
  machine_->Crash(FakeMachine::HostMemory::kKept);
  progress_.clear();
  StartCache(machine_->Snapshot());
  Settle();
}

void CacheTest::LoseIndexAndRestart() {
  cache_.reset();
  machine_->Crash();
  progress_.clear();
  const DiskReadFunction read = [this](std::span<DiskRead> reads) {
    for (DiskRead& one : reads) {
      const auto from = file(one.file).contents().subspan(one.offset, one.into.size());
      std::ranges::copy(from, one.into.begin());
    }
  };
  StartCache(
      RebuildIndex(machine_->geometry(), read, {.now_ms = machine_->clock.WallMs()}).snapshot);
}

void CacheTest::DrainAndRestart() {
  Drain();
  CrashAndRestart();
}

void CacheTest::Settle() {
  machine_->loop.RunAll();
  cache_->CheckInvariants();
}

void CacheTest::AdvanceAndTick(int64_t ms) {
  machine_->clock.Advance(ms);
  cache_->Tick();
  Settle();
}

PendingAcquire CacheTest::BeginAcquire(SessionId session, Hashes hashes, uint32_t new_blocks) {
  PendingAcquire pending;
  cache_->Acquire(AcquireRequest{.session = session,
                                 .pool = pool_.id,
                                 .hashes = std::move(hashes),
                                 .new_blocks = new_blocks,
                                 .block_tokens = kBlockTokens},
                  [answer = pending.answer](Result<AcquireReply> result) {
                    EXPECT_FALSE(answer->has_value()) << "answered twice";
                    answer->emplace(std::move(result));
                  });
  return pending;
}

PendingAcquire CacheTest::BeginCounted(SessionId session, Hashes hashes, uint32_t layers) {
  PendingAcquire pending;
  cache_->Acquire(
      AcquireRequest{.session = session,
                     .pool = pool_.id,
                     .hashes = std::move(hashes),
                     .block_tokens = kBlockTokens,
                     .layers = layers,
                     .counters = counters_},
      [answer = pending.answer](Result<AcquireReply> reply) { answer->emplace(std::move(reply)); });
  return pending;
}

uint32_t CacheTest::Counted(const AcquireReply& reply) const {
  const std::byte* const word = counters_->memory().data() + reply.counter->offset();
  return *reinterpret_cast<const uint32_t*>(word) - reply.counter->base();
}

Result<AcquireReply> CacheTest::TryAcquire(SessionId session, Hashes hashes, uint32_t new_blocks,
                                           Hashes partial_blocks) {
  std::optional<Result<AcquireReply>> answer;
  cache_->Acquire(AcquireRequest{.session = session,
                                 .pool = pool_.id,
                                 .hashes = std::move(hashes),
                                 .partial_blocks = std::move(partial_blocks),
                                 .new_blocks = new_blocks,
                                 .block_tokens = kBlockTokens},
                  [&](Result<AcquireReply> result) { answer.emplace(std::move(result)); });
  while (!answer && machine_->loop.RunOne()) {
  }
  if (!answer) {
    ADD_FAILURE() << "acquire is not answered";
    return MakeError(ErrorCode::kTimeout, "not_answered");
  }
  return *answer;
}

AcquireReply CacheTest::Acquire(SessionId session, Hashes hashes, uint32_t new_blocks,
                                Hashes partial_blocks) {
  Result<AcquireReply> reply =
      TryAcquire(session, std::move(hashes), new_blocks, std::move(partial_blocks));
  Settle();
  if (!reply) {
    ADD_FAILURE() << reply.error().ToString();
    return {};
  }
  EXPECT_TRUE(reply->load.value == 0 || LastProgress(reply->load).finished);
  return *reply;
}

Result<CommitReply> CacheTest::TryCommit(SessionId session, BlockHandle block,
                                         const CommitRequest& request) {
  FillFromHash(request.hash, Bytes(block));
  CommitRequest filled = request;
  filled.block = block;
  if (filled.tokens == 0) filled.tokens = kBlockTokens;
  return cache_->Commit(session, pool_.id, filled);
}

void CacheTest::Commit(SessionId session, BlockHandle block, const BlockHash& hash, uint32_t depth,
                       RetentionClass retention) {
  const Result<CommitReply> reply =
      TryCommit(session, block, {.hash = hash, .depth = depth, .retention = retention});
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_FALSE(reply->duplicate);
}

void CacheTest::Release(SessionId session, const Handles& blocks) {
  const auto errors = cache_->Release(session, pool_.id, blocks);
  for (const auto& error : errors) ADD_FAILURE() << error.error.ToString();
}

std::optional<Error> CacheTest::TryRelease(SessionId session, BlockHandle block) {
  const auto errors = cache_->Release(session, pool_.id, Handles{block});
  if (errors.empty()) return std::nullopt;
  return errors.front().error;
}

Handles CacheTest::Store(SessionId session, const Hashes& hashes, RetentionClass retention) {
  std::vector<BlockPresence> present = cache_->Lookup(pool_.id, hashes);
  const auto missing = std::ranges::find_if_not(present, &BlockPresence::anywhere);
  const auto allocated = static_cast<uint32_t>(present.end() - missing);
  const AcquireReply reply = Acquire(session, hashes, allocated);
  EXPECT_EQ(reply.hits.size() + reply.new_blocks.size(), hashes.size());
  Handles blocks = HandlesOf(reply);
  for (const BlockHandle block : reply.new_blocks) {
    const auto depth = static_cast<uint32_t>(blocks.size());
    Commit(session, block, hashes[depth], depth, retention);
    blocks.push_back(block);
  }
  return blocks;
}

void CacheTest::Put(const Hashes& hashes, RetentionClass retention) {
  Handles blocks = Store(kAlice, hashes, retention);
  std::ranges::reverse(blocks);
  Release(kAlice, blocks);
  Settle();
}

void CacheTest::Use(const Hashes& hashes) {
  const AcquireReply reply = Acquire(kAlice, hashes);
  EXPECT_EQ(reply.hits.size(), hashes.size());
  Handles blocks = HandlesOf(reply);
  std::ranges::reverse(blocks);
  Release(kAlice, blocks);
  Settle();
}

void CacheTest::EvictFromPool() {
  const AcquireReply reply = Acquire(kBob, {}, pool_.blocks);
  EXPECT_EQ(reply.new_blocks.size(), pool_.blocks);
  Release(kBob, reply.new_blocks);
  Settle();
}

void CacheTest::Drain() {
  bool done = false;
  cache_->Drain([&] { done = true; });
  Settle();
  EXPECT_TRUE(done);
}

std::vector<Tier> CacheTest::TiersOf(const AcquireReply& reply) {
  std::vector<Tier> tiers;
  for (const AcquiredBlock& hit : reply.hits) tiers.push_back(hit.tier);
  return tiers;
}

Handles CacheTest::HandlesOf(const AcquireReply& reply) {
  Handles handles;
  for (const AcquiredBlock& hit : reply.hits) handles.push_back(hit.handle);
  return handles;
}

BlockPresence CacheTest::Presence(const BlockHash& hash) const {
  return cache_->Lookup(pool_.id, Hashes{hash}).front();
}

std::span<std::byte> CacheTest::Bytes(BlockHandle block) const {
  FakeDevicePool* const pool = machine_->devices[device_]->PoolByFd(pool_.fd);
  return {pool->data() + block.index.value * pool_.block_bytes, pool_.block_bytes};
}

const LoadProgress& CacheTest::LastProgress(LoadId load) const {
  static const LoadProgress kNever;
  const auto last =
      std::ranges::find(progress_.rbegin(), progress_.rend(), load, &LoadProgress::load);
  return last == progress_.rend() ? kNever : *last;
}

uint64_t CacheTest::Drops(Tier tier, DropReason reason) const {
  return cache_->stats().drops[static_cast<size_t>(tier)][static_cast<size_t>(reason)];
}

uint64_t CacheTest::Misses(MissReason reason) const {
  return cache_->stats().misses_by_reason[static_cast<size_t>(reason)];
}

PoolGauges CacheTest::PoolGaugesNow() const { return cache_->Gauges().pools.front(); }

Hashes CacheTest::Sequence(uint64_t stream, uint32_t count) {
  Hashes hashes;
  for (uint32_t i = 0; i < count; ++i) hashes.push_back(TestHash(stream, i));
  return hashes;
}

NamespaceIdentity CacheTest::Identity(const std::string& tenant, uint8_t model,
                                      uint64_t block_bytes) {
  NamespaceIdentity identity{.tenant = tenant, .block_bytes = block_bytes};
  identity.model.bytes.fill(model);
  return identity;
}

}  // namespace kvtier
