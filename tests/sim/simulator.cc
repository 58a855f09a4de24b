// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/units.h"
#include "tests/fakes/derived_bytes.h"
#include "tests/sim/sim_check.h"

namespace kvtier {
namespace {

// Streams of their own: the rest of a seed's life is the same without kept pools and erasures.
constexpr uint64_t kPoolsStream = 0x706f6f6c;
constexpr uint64_t kErasuresStream = 0x65726173;
constexpr uint64_t kRegionsStream = 0x7265676f;

}  // namespace

Simulator::Simulator(const SimPlan& plan, bool verbose)
    : plan_(plan),
      verbose_(verbose),
      random_(~plan.seed),
      universe_(random_.Fork()),
      world_(plan, random_.Fork()),
      oracle_(plan, &world_, universe_),
      floors_({plan, world_, oracle_, universe_}, SeededRandom(plan.seed), [this] { Drain(); }),
      kept_host_({plan, world_, oracle_, universe_}, SeededRandom(plan.seed).Fork()),
      kept_pools_({plan, world_, oracle_, universe_}, SeededRandom(plan.seed ^ kPoolsStream)),
      erasures_({plan, world_, oracle_, universe_}, SeededRandom(plan.seed ^ kErasuresStream)),
      regions_({plan, world_, oracle_, universe_}, SeededRandom(plan.seed ^ kRegionsStream)) {
  world_.OnLeft([this](const BlockKey& key) { oracle_.OnLeft(key); });
  OpenClient();
}

SimReport Simulator::Run() {
  for (step_ = 0; step_ < plan_.steps; ++step_) {
    Step();
    kept_pools_.Step();
    if (erasures_.Step()) Trace("erase");
    if (regions_.Step()) Trace("region");
    Judge();
    RunSomeEvents();
    Judge();
    MaybeCrash();
  }
  Quiesce();
  report_.stats = world_.cache().stats();
  report_.adopted = kept_host_.survivors() + kept_pools_.survivors();
  report_.erasures = erasures_.ended();
  report_.transfers = regions_.ended();
  return report_;
}

void Simulator::Trace(const char* what) {
  if (!verbose_) return;
  const CacheGauges gauges = world_.cache().Gauges();
  std::fprintf(stderr,
               "%5u %-12s t+%lld ms, %zu events waiting, %llu entries, host %llu, disk %llu/%llu\n",
               step_, what, static_cast<long long>(world_.machine().clock.elapsed_ms()),
               world_.machine().loop.pending(), static_cast<unsigned long long>(gauges.entries),
               static_cast<unsigned long long>(gauges.host_blocks),
               static_cast<unsigned long long>(gauges.disk_persisted),
               static_cast<unsigned long long>(gauges.disk_blocks));
}

void Simulator::Judge() {
  world_.cache().CheckInvariants();
  oracle_.CheckGauges();
  for (const auto& client : clients_) client->CheckCounters();
}

void Simulator::Step() {
  const uint64_t choice = random_.Below(100);
  if (choice < 70 && !clients_.empty()) {
    ClientStep(choice);
  } else {
    UpkeepStep(random_.Below(100));
  }
}

void Simulator::ClientStep(uint64_t choice) {
  SimClient& client = *clients_[random_.Below(clients_.size())];
  if (choice < 20) {
    Trace("acquire");
    client.BeginSequence();
  } else if (choice < 45) {
    Trace("commit");
    client.CommitSome();
  } else if (choice < 62) {
    Trace("release");
    client.ReleaseSome();
  } else if (choice < 65) {
    Trace("fork");
    client.Fork();
  } else if (choice < 68) {
    Trace("misbehave");
    client.Misbehave();
  } else {
    client.CheckOne();
  }
}

void Simulator::UpkeepStep(uint64_t choice) {
  if (choice < 8) return OpenClient();
  if (choice < 13) return CloseClient();
  if (choice < 20) return ReleaseQuarantine();
  if (choice < 24) return ScribbleInQuarantine();
  if (choice < 32) return Prefetch();
  if (choice < 38) return Pin();
  if (choice < 41) return Verify();
  if (choice < 43) return GrowArena();
  if (choice < 44) return Resize();
  if (choice < 46) {
    Trace("drain");
    return Drain();
  }
  if (choice < 47) return oracle_.CheckMemoryClass();
  if (choice < 48) return ChangeCaps();
  if (choice < 49 && !plan_.options.tenants.empty()) return TryFloors();
  if (choice < 56) return Hint();
  if (choice < 90) return AdvanceClock(static_cast<int64_t>(random_.Below(500)));
  if (choice < 97) return AdvanceClock(static_cast<int64_t>(random_.Below(3 * kMinuteMs)));
  AdvanceClock(static_cast<int64_t>(random_.Below(8 * kHourMs)));
}

void Simulator::RunSomeEvents() {
  uint64_t count = random_.Below(8);
  if (random_.Chance(0.1)) count = 200;
  while (count-- > 0 && world_.machine().loop.RunOne()) ++report_.events;
  if (world_.machine().loop.pending() > 0) return;
  oracle_.OnQuiet();
  world_.view().Check(world_.cache());
}

void Simulator::PassTime(int64_t ms) {
  world_.machine().clock.Advance(ms);
  for (const auto& client : clients_) client->TouchAwaited();
  regions_.TouchPending();
  oracle_.OnTime();
}

void Simulator::AdvanceClock(int64_t ms) {
  PassTime(ms);
  if (random_.Chance(0.8)) Tick();
}

void Simulator::Tick() {
  Trace("tick");
  oracle_.OnTick();
  Cache& cache = world_.cache();
  // A tick ends a part of the pins (close_part_blocks), and the time to live of their blocks begins
  // then: hours must not pass before the others have ended.
  uint64_t pinned = 0;
  do {
    pinned = cache.Gauges().pinned_blocks;
    cache.Tick();
  } while (cache.Gauges().pinned_blocks < pinned);
}

SimPool Simulator::RandomPool() {
  return {static_cast<uint32_t>(random_.Below(plan_.namespaces.size())),
          static_cast<uint32_t>(random_.Below(plan_.sizes.devices))};
}

std::vector<BlockHash> Simulator::RandomPrefix() {
  const auto stream = static_cast<uint32_t>(random_.Below(SimUniverse::kStreams));
  std::vector<BlockHash> hashes;
  const uint64_t length = random_.Between(1, SimUniverse::kDepth);
  for (uint32_t depth = 0; depth < length; ++depth) {
    hashes.push_back(universe_.HashAt(stream, depth));
  }
  return hashes;
}

void Simulator::OpenClient() {
  if (clients_.size() >= plan_.sessions) return;
  const SessionId session(next_session_++);
  clients_.push_back(std::make_shared<SimClient>(SimContext{plan_, world_, oracle_, universe_},
                                                 session, random_.Fork()));
  clients_.back()->Open();
}

void Simulator::CloseClient() {
  if (clients_.empty()) return;
  Trace("close");
  const auto client = clients_.begin() + static_cast<ptrdiff_t>(random_.Below(clients_.size()));
  quarantines_.push_back({(*client)->session(), (*client)->Close()});
  clients_.erase(client);
}

void Simulator::ReleaseQuarantine() {
  if (quarantines_.empty()) return;
  Trace("process gone");
  const auto gone =
      quarantines_.begin() + static_cast<ptrdiff_t>(random_.Below(quarantines_.size()));
  for (const SimBlock& block : gone->blocks) oracle_.OnQuarantineReleased(block);
  world_.cache().ReleaseQuarantine(gone->session);
  quarantines_.erase(gone);
}

// The dead session's process is still writing.
void Simulator::ScribbleInQuarantine() {
  for (const Quarantine& quarantine : quarantines_) {
    for (const SimBlock& block : quarantine.blocks) {
      FillFromHash(TestHash(random_.Next(), 0), world_.Bytes(block.pool, block.handle));
    }
  }
}

void Simulator::Prefetch() {
  Trace("prefetch");
  const SimPool pool = RandomPool();
  const std::vector<BlockHash> hashes = RandomPrefix();
  const uint32_t count = world_.cache().Prefetch(world_.pool(pool).id, hashes);
  SIM_CHECK(count <= hashes.size(), "more prefetched than asked for");
  for (uint32_t i = 0; i < count; ++i) oracle_.OnTouched(pool.name_space, hashes[i]);
}

void Simulator::Pin() {
  Trace("pin");
  const SimPool pool = RandomPool();
  const std::vector<BlockHash> hashes = RandomPrefix();
  const int64_t ttl_ms = random_.Chance(0.3) ? 0 : static_cast<int64_t>(random_.Below(4 * kHourMs));
  const SessionId holder(random_.Between(1, 6));
  const auto pinned = world_.cache().Pin(holder, world_.pool(pool).id, hashes, ttl_ms);
  SIM_CHECK(pinned || pinned.error().code == ErrorCode::kLimitExceeded, pinned.error().ToString());
  const int64_t until_ms = world_.machine().clock.WallMs() + ttl_ms;
  for (const BlockHash& hash : hashes) oracle_.OnPinned(pool.name_space, hash, until_ms);
}

// Changes the order in which blocks leave, and nothing that the oracle knows of.
void Simulator::Hint() {
  Trace("hint");
  const SimPool pool = RandomPool();
  const std::vector<BlockHash> hashes = RandomPrefix();
  const auto hint = static_cast<SequenceHint>(random_.Between(1, 3));
  // Some go on at once.
  const int64_t latest_ms = random_.Chance(0.5) ? 2000 : 4 * kHourMs;
  const auto returns_in_ms = static_cast<int64_t>(random_.Below(latest_ms));
  const auto taken = world_.cache().Hint(world_.pool(pool).id, hashes, hint, returns_in_ms);
  SIM_CHECK(taken && *taken <= hashes.size(), "a hint was taken of more blocks than it names");
}

void Simulator::Verify() {
  Trace("verify");
  ++verifying_;
  world_.cache().VerifyStep(random_.Below(4), static_cast<uint32_t>(random_.Between(1, 6)),
                            [this](const Cache::VerifyResult& result) {
                              --verifying_;
                              SIM_CHECK(result.bad == 0 || !DiskIsSound(),
                                        "verify found damage on a sound disk");
                            });
}

// A reload gives tenants other caps, which may be below what they have.
void Simulator::ChangeCaps() {
  if (plan_.options.tenants.empty()) return oracle_.CheckMemoryClass();
  Trace("change caps");
  CacheOptions options = plan_.options;
  for (TenantQuota& tenant : options.tenants) {
    for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
      TierQuota& quota = tenant.tiers[static_cast<size_t>(tier)];
      quota.max_bytes = random_.Between(1, 6) * options.slab_bytes;
      if (random_.Chance(0.2)) quota.max_bytes = 0;
      if (quota.max_bytes > 0) quota.max_bytes = std::max(quota.max_bytes, quota.reserved_bytes);
    }
  }
  const Status changed = world_.Reconfigure(options);
  SIM_CHECK(changed.has_value(), changed.error().ToString());
  oracle_.OnCapsChanged();
}

void Simulator::Drain() {
  ++draining_;
  world_.cache().Drain([this] { --draining_; });
}

// Only where all is at rest can be said whose doing it is that something goes.
void Simulator::TryFloors() {
  // A slab may be another tenant's by what a damaged record says of it.
  if (kept_host_.damaged_ever()) return;
  kept_pools_.ReleaseAll();
  regions_.CloseAll();
  world_.SetFaults(false);
  UnpinEverything();
  // After a failure nothing is written before the next tick.
  Tick();
  if (kept_host_.adopted_ever()) {
    // Until slots that a dead daemon was filling are given out again.
    PassTime(kMinuteMs);
    Tick();
  }
  if (ComeToRest()) {
    Trace("floors");
    const bool tried = floors_.Try({.session = SessionId(next_session_++),
                                    .disk_sound = DiskIsSound() && report_.crashes == 0});
    report_.floors += tried ? 1 : 0;
  }
  world_.SetFaults(true);
}

bool Simulator::ComeToRest() {
  for (int round = 0; round < 240; ++round) {
    report_.events += world_.machine().loop.RunAll();
    if (world_.cache().Idle() && draining_ == 0 && verifying_ == 0) return true;
    AdvanceClock(kMinuteMs / 4);
  }
  return false;
}

// No damage can be on disk: no faults, no scan that finds headers of slots half overwritten.
bool Simulator::DiskIsSound() const {
  return !plan_.disk_faulty && plan_.index_tail_loss_rate == 0 && !scanned_;
}

void Simulator::GrowArena() {
  FakeArena& arena = *world_.machine().arena;
  if (arena.ready_bytes() < arena.capacity_bytes()) arena.Grow(plan_.sizes.slab_bytes);
}

// Reserves of tenants stay within it.
void Simulator::Resize() {
  const MachineSizes& sizes = plan_.sizes;
  const bool reserves = !plan_.options.tenants.empty();
  if (random_.Chance(0.5)) {
    Trace("resize host");
    const uint64_t slabs = random_.Between(reserves ? sizes.host_slabs : 1, sizes.host_slabs);
    return world_.cache().Resize({.host_bytes = slabs * sizes.slab_bytes});
  }
  Trace("resize disk");
  DriveSlabs drives = world_.machine().geometry().drive_slabs;
  for (uint64_t& slabs : drives) {
    if (slabs > 0 && !reserves) slabs = random_.Between(1, slabs);
  }
  world_.cache().Resize({.disk = drives});
}

void Simulator::MaybeCrash() {
  if (!random_.Chance(plan_.crash_rate)) return;
  // Acquires that wait for their answer may have used their blocks already.
  for (const auto& client : clients_) client->TouchAwaited();
  regions_.BeforeDeath();
  oracle_.BeforeCrash();
  const FakeMachine::HostMemory host = kept_host_.BeforeDeath();
  kept_pools_.BeforeDeath();
  erasures_.BeforeDeath();
  clients_.clear();
  quarantines_.clear();
  draining_ = verifying_ = 0;
  ++report_.crashes;
  if (random_.Chance(0.4)) {
    RestartFromHeaders(host);
  } else {
    RestartFromIndex(host);
  }
  erasures_.AfterRestart();
  kept_pools_.AfterRestart();
  kept_host_.AfterRestart();
  report_.survivors += oracle_.survivors().size();
  Judge();
  OpenClient();
  // Host may be full of blocks that have to be written first.
  if (host == FakeMachine::HostMemory::kKept || kept_pools_.kept()) return;
  if (!plan_.disk_faulty && plan_.copy_failure_rate == 0) ServeSurvivors();
}

void Simulator::RestartFromIndex(FakeMachine::HostMemory host) {
  const bool lose_tail = random_.Chance(plan_.index_tail_loss_rate);
  Trace(lose_tail ? "crash, tail" : "crash");
  world_.CrashAndRestart(SimWorld::Recovery::kFromIndex, lose_tail ? random_.Between(1, 10) : 0,
                         host, [this] { AfterDeath(); });
  oracle_.AfterRestart(lose_tail ? SimOracle::Source::kNothingSure : SimOracle::Source::kIndex);
}

void Simulator::RestartFromHeaders(FakeMachine::HostMemory host) {
  Trace("crash, scan");
  scanned_ = true;
  world_.CrashAndRestart(SimWorld::Recovery::kFromHeaders, 0, host, [this] { AfterDeath(); });
  // Blocks that a scan found count as persisted only once they have been read.
  // With pools that were kept, much is copied and written meanwhile.
  const bool verify = !plan_.disk_faulty && random_.Chance(0.5) && !kept_pools_.kept();
  if (verify) {
    world_.cache().VerifyStep(0, UINT32_MAX, [](const Cache::VerifyResult& result) {
      SIM_CHECK(result.finished, "not everything was verified");
    });
    world_.machine().loop.RunAll();
  }
  oracle_.AfterRestart(verify ? SimOracle::Source::kHeaders : SimOracle::Source::kNothingSure);
}

void Simulator::AfterDeath() {
  kept_host_.AfterDeath();
  kept_pools_.AfterDeath();
}

// Persisted blocks are not only listed, they are served with their bytes.
void Simulator::ServeSurvivors() {
  if (plan_.sizes.host_slabs_ready == 0 || random_.Chance(0.7)) return;
  const std::vector<BlockKey>& survivors = oracle_.survivors();
  const SessionId session(next_session_++);
  LoadProgress last;
  world_.cache().OpenSession(session, [&](const LoadProgress& progress) { last = progress; });
  for (size_t i = 0; i < std::min<size_t>(survivors.size(), 3); ++i) {
    const BlockKey& key = survivors[random_.Below(survivors.size())];
    const SimPool pool{key.namespace_id.value,
                       static_cast<uint32_t>(random_.Below(plan_.sizes.devices))};
    std::optional<AcquireReply> reply;
    world_.cache().Acquire({.session = session, .pool = world_.pool(pool).id, .hashes = {key.hash}},
                           [&](const Result<AcquireReply>& result) { reply = result.value(); });
    world_.machine().loop.RunAll();
    SIM_CHECK(reply && reply->hits.size() == 1, "a persisted block is not served");
    SIM_CHECK(reply->load.value == 0 || (last.load == reply->load && last.ready == 1),
              fmt::format("a persisted block cannot be loaded: {}", MissReasonName(last.miss)));
    const SimBlock block{pool, reply->hits[0].handle};
    oracle_.CheckBytes(block, key.hash);
    oracle_.OnTouched(pool.name_space, key.hash);
    const auto errors =
        world_.cache().Release(session, world_.pool(pool).id, std::vector{block.handle});
    SIM_CHECK(errors.empty(), errors.front().error.ToString());
  }
  world_.cache().CloseSession(session);
  world_.cache().ReleaseQuarantine(session);
}

void Simulator::Quiesce() {
  Trace("quiesce");
  while (world_.machine().arena->ready_bytes() < world_.machine().arena->capacity_bytes()) {
    GrowArena();
  }
  UnpinEverything();
  kept_pools_.ReleaseAll();
  regions_.CloseAll();
  while (!clients_.empty()) CloseClient();
  while (!quarantines_.empty()) ReleaseQuarantine();
  SettleUntilIdle();
  // Blocks that a new daemon had not found yet have come back with their pins.
  UnpinEverything();
  Judge();
  erasures_.CheckEnded();
  CheckNothingHeld();
  CheckEverythingUsable();
  oracle_.CheckMemoryClassAtRest();
  world_.SetFaults(false);
  ExpireEverything();
}

// A pinned block that may not go to disk can keep a slab of the host arena from those who wait for
// it, as long as the pin lasts.
void Simulator::UnpinEverything() {
  const uint32_t namespaces = world_.cache().NamespaceCount();
  for (uint32_t id = 0; id < namespaces; ++id) {
    const auto unpinned = world_.cache().Pin(NamespaceId(id), universe_.all(), 0);
    SIM_CHECK(unpinned.has_value(), unpinned.error().ToString());
  }
}

void Simulator::SettleUntilIdle() {
  for (int round = 0; round < 200; ++round) {
    report_.events += world_.machine().loop.RunAll();
    if (world_.cache().Idle() && draining_ == 0 && verifying_ == 0) return;
    world_.machine().clock.Advance(kMinuteMs / 4);
    Tick();
  }
  const CacheGauges gauges = world_.cache().Gauges();
  FailSimulation(fmt::format(
      "the cache does not come to rest: {} loads, {} offloads, {} reads, {} writes, {} acquires, "
      "{} blocks to persist, {} pinned, {} drains, {} verifications",
      gauges.loads_in_flight, gauges.offloads_in_flight, gauges.disk_reads_in_flight,
      gauges.disk_writes_in_flight, gauges.acquires_waiting, gauges.unpersisted_blocks,
      gauges.pinned_blocks, draining_, verifying_));
}

void Simulator::CheckNothingHeld() const {
  const CacheGauges gauges = world_.cache().Gauges();
  SIM_CHECK(gauges.references == 0 && gauges.sessions == 0, "references without sessions");
  SIM_CHECK(gauges.regions == 0 && gauges.region_blocks_in_flight == 0, "regions without engines");
  SIM_CHECK(gauges.loads_in_flight + gauges.offloads_in_flight + gauges.disk_reads_in_flight +
                    gauges.disk_writes_in_flight + gauges.acquires_waiting ==
                0,
            "idle with work under way");
  for (const PoolGauges& pool : gauges.pools) {
    SIM_CHECK(pool.free + pool.cached == pool.blocks,
              fmt::format("{} of {} pool blocks leaked", pool.blocks - pool.free - pool.cached,
                          pool.blocks));
  }
}

// Blocks that no acquire can reach have gone from every tier.
void Simulator::CheckEverythingUsable() {
  // Blocks that are lost meanwhile, because their time is up, leave others behind for as long
  // again.
  for (int round = 0; round < 4 * static_cast<int>(SimUniverse::kDepth); ++round) {
    world_.machine().clock.Advance(plan_.options.keep_unusable_ms + 1000);
    Tick();
    SettleUntilIdle();
    const auto& unusable = world_.cache().Gauges().unusable_blocks;
    if (unusable[0] + unusable[1] + unusable[2] == 0) return;
  }
  SIM_CHECK(false, "blocks are kept that no acquire can reach");
}

void Simulator::ExpireEverything() {
  for (int hour = 0; hour < 36; hour += 6) {
    world_.machine().clock.Advance(6 * kHourMs);
    Tick();
    SettleUntilIdle();
  }
  // A tick looks at a part of them (close_part_blocks), but each finds some.
  for (uint64_t ticks = 2 * world_.cache().Gauges().entries; ticks > 0; --ticks) {
    Tick();
    SettleUntilIdle();
  }
  Judge();
  const CacheGauges gauges = world_.cache().Gauges();
  SIM_CHECK(gauges.entries == 0, fmt::format("{} entries never expire", gauges.entries));
  SIM_CHECK(gauges.host_used_bytes == 0, "host slots leaked");
  SIM_CHECK(gauges.disk_used_bytes == 0 || !DiskIsSound(),
            fmt::format("{} bytes of disk slots leaked", gauges.disk_used_bytes));
  SIM_CHECK(gauges.pinned_blocks == 0, "pins without blocks");
}

}  // namespace kvtier
