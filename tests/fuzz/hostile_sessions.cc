// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/hostile_sessions.h"

#include <sys/eventfd.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/hostile_client.h"
#include "tests/fuzz/hostile_world.h"

namespace kvtier {
namespace {

constexpr uint32_t kClients = 4;

// A run is cut after so many steps, so that none takes a second.
constexpr int kMaxSteps = 600;

class HostileGame {
 public:
  explicit HostileGame(std::span<const uint8_t> bytes)
      : input_(bytes), world_(HostileSetup(&input_)) {
    for (uint32_t i = 0; i < kClients; ++i) StartProcess(i);
  }

  void Play() {
    for (int step = 0; step < kMaxSteps && !input_.empty(); ++step) {
      Step();
      Look();
    }
    world_.Stop();
    for (uint32_t i = 0; i < kClients; ++i) {
      clients_[i].reset();
      EndProcess(i);
    }
    world_.Finish();
  }

 private:
  void Step();
  void ClientStep(uint32_t choice);
  void DeviceStep();
  void ReopenRegion(HostileClient* client);
  void Administer();
  void AdvanceClock();
  void FailSomething();
  void Evict();
  void Reconfigure();

  // After every step: checks the answers and the invariants.
  void Look() {
    world_.Settle();
    for (auto& client : clients_) {
      if (client && !client->Receive()) client.reset();
    }
    world_.cache().CheckInvariants();
  }

  void StartProcess(uint32_t i) {
    processes_[i] = {.pid = next_pid_++,
                     .uid = 1 + i % world_.setup().tenants,
                     .ended = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
  }
  // With its connections.
  void EndProcess(uint32_t i) {
    clients_[i].reset();
    // Not before the daemon has seen the connection end: a real process is also known to have ended
    // when its descriptors are closed.
    world_.Settle();
    KVT_CHECK(::eventfd_write(processes_[i].ended.get(), 1) == 0);
    world_.Settle();
  }

  FuzzInput input_;
  HostileWorld world_;
  int32_t next_pid_ = 100;
  std::array<HostileProcess, kClients> processes_;
  std::array<std::unique_ptr<HostileClient>, kClients> clients_;
};

void HostileGame::Step() {
  const uint8_t byte = input_.Byte();
  // The highest bytes: what earlier inputs mean stays as it is.
  if (byte >= 240) {
    HostileClient* const client = clients_[input_.Below(kClients)].get();
    if (client == nullptr) return;
    return byte < 252 ? client->UseRegions() : ReopenRegion(client);
  }
  const uint32_t choice = byte % 32;
  if (choice < 20) return ClientStep(choice);
  if (choice < 26) return DeviceStep();
  if (choice < 29) return AdvanceClock();
  if (choice < 30) return FailSomething();
  Administer();
}

void HostileGame::ClientStep(uint32_t choice) {
  const uint32_t which = input_.Below(kClients);
  std::unique_ptr<HostileClient>& client = clients_[which];
  const HostileClient* const other = clients_[(which + 1) % kClients].get();
  if (!client) {
    client = std::make_unique<HostileClient>(&world_, processes_[which], &input_);
    return;
  }
  if (choice < 5) return client->Acquire();
  if (choice < 8) return client->CommitInOrder();
  if (choice < 9) return client->Commit(other);
  if (choice < 11) return client->Release(other);
  if (choice < 14) return client->ReleaseStretch();
  if (choice < 15) return client->Prefetch();
  if (choice < 16) return client->Tell();
  if (choice < 17) return client->Ask();
  if (choice < 18) return client->Attach();
  switch (input_.Below(4)) {
    case 0:
      client.reset();
      return;
    case 1:
      EndProcess(which);
      return StartProcess(which);
    case 2:
      return client->CorruptNext();
    default:
      return client->SendRaw();
  }
}

void HostileGame::DeviceStep() {
  FakeMachine& machine = world_.machine();
  switch (input_.Below(6)) {
    case 0:
      machine.loop.RunAll();
      return;
    case 1:
      // Runs copies only, or events of the disk only.
      (void)machine.loop.RunOneOf(machine.device->source());
      return;
    case 2:
      if (!machine.files.empty()) (void)machine.loop.RunOneOf(machine.files.front()->source());
      return;
    default:
      for (uint32_t events = 1 + input_.Below(8); events > 0; --events) {
        if (!machine.loop.RunOne()) return;
      }
  }
}

// All that a region leaves behind meets the next one, which has blocks of the same numbers, and
// time passes while transfers are under way.
void HostileGame::ReopenRegion(HostileClient* client) {
  client->Store();
  client->CloseRegion();
  world_.Settle();
  world_.machine().loop.RunAll();
  if (!client->Receive()) return;
  client->OpenRegion();
  world_.Settle();
  if (!client->Receive()) return;
  client->Load();
  world_.Settle();
  for (uint32_t ticks = input_.Below(4); ticks > 0; --ticks) AdvanceClock();
}

void HostileGame::AdvanceClock() {
  FakeClock& clock = world_.machine().clock;
  switch (input_.Below(8)) {
    case 6:
      clock.StepWall(input_.OneOf({-kHourMs, int64_t{-10'000}, kHourMs, 48 * kHourMs}));
      break;
    case 7:
      clock.Advance(input_.OneOf({kHourMs, 25 * kHourMs}));
      break;
    default:
      clock.Advance(input_.OneOf({int64_t{100}, int64_t{1}, int64_t{1000}, int64_t{30'000}}));
  }
  world_.cache().Tick();
}

void HostileGame::FailSomething() {
  FakeMachine& machine = world_.machine();
  const int count = static_cast<int>(1 + input_.Below(3));
  const uint32_t what = input_.Below(4);
  if (what == 0)
    return machine.devices[input_.Below(machine.sizes().devices)]->FailNextCopies(count);
  if (machine.files.empty()) return;
  FakeBlockFile& file = *machine.files[input_.Below(machine.files.size())];
  if (what == 1) return machine.index->FailNextBatches(count);
  if (what == 2) {
    return file.ScriptReads(
        {input_.OneOf({ReadFault::kFlipped, ReadFault::kEio, ReadFault::kShort})});
  }
  file.ScriptWrites(
      {input_.OneOf({WriteFault::kEio, WriteFault::kEnospc, WriteFault::kFlipped, WriteFault::kLost,
                     WriteFault::kTorn, WriteFault::kMisdirected, WriteFault::kShort})});
}

void HostileGame::Administer() {
  switch (input_.Below(8)) {
    case 0:
      return world_.cache().Drain([] {});
    case 1:
      return world_.cache().VerifyStep(0, input_.Below(16), [](const Cache::VerifyResult&) {});
    case 2: {
      FakeArena& arena = *world_.machine().arena;
      if (arena.ready_bytes() < arena.capacity_bytes()) {
        arena.Grow(world_.setup().config.cache.slab_bytes);
      }
      return;
    }
    case 3:
      return Reconfigure();
    case 4:
      if (input_.Below(8) == 7) {
        world_.server().CloseSessions({ErrorCode::kUnavailable, "daemon_stopping", ""});
      }
      return;
    default:
      return Evict();
  }
}

void HostileGame::Evict() {
  const BlockKey key{NamespaceId(input_.Below(3)),
                     HostileHash(input_.Below(kHostileStreams), input_.Below(kHostileDepth))};
  std::optional<Tier> tier;
  if (input_.Flag()) tier = input_.OneOf({Tier::kPool, Tier::kHost, Tier::kDisk});
  (void)world_.cache().Evict(key, tier);
}

void HostileGame::Reconfigure() {
  CacheOptions options = world_.setup().config.cache;
  options.max_wait_ms = input_.OneOf({int64_t{100}, int64_t{1}, int64_t{5000}});
  options.pool_clean_fraction = input_.OneOf({0.0, 0.3, 0.5});
  options.pin_fraction = input_.OneOf({0.5, 0.05, 0.9});
  options.max_references_per_session = input_.OneOf({1u << 20, 1u, 16u});
  options.extended_ttl_ms = input_.OneOf({24 * kHourMs, kHourMs, int64_t{120'000}});
  for (TenantQuota& tenant : options.tenants) {
    tenant.tiers[1].max_bytes = input_.Below(3) * options.slab_bytes;
  }
  if (!options.Validate()) return;
  (void)world_.cache().Reconfigure(options);
}

}  // namespace

void PlayHostileSessions(std::span<const uint8_t> input) { HostileGame(input).Play(); }

}  // namespace kvtier
