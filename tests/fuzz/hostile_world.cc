// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/hostile_world.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/units.h"

namespace kvtier {
namespace {

// Time-outs of the real clock must not decide what happens.
constexpr int64_t kNeverMs = int64_t{24} * 60 * kMinuteMs;

// One socket for all worlds of the process: making a directory for each takes longer than playing.
const std::string& SocketPath() {
  static const TestDirectory directory;
  static const std::string path = directory.path() / "kvtier.sock";
  return path;
}

// A fake device lends no more memory than it has: beside the pools, that of some regions.
constexpr uint64_t kRegionBytes = 1 * kMiB;

TenantQuota DrawQuota(FuzzInput* input, uint64_t slab_bytes) {
  TenantQuota quota;
  if (input->Flag()) quota.tiers[1].max_bytes = (1 + input->Below(2)) * slab_bytes;
  if (input->Flag()) quota.tiers[2].max_bytes = (1 + input->Below(3)) * slab_bytes;
  if (input->Flag()) quota.memory_ttl_ms = kMinuteMs;
  return quota;
}

void DrawCacheOptions(FuzzInput* input, CacheOptions* options) {
  options->slab_bytes = 64 * kKiB;
  options->max_wait_ms = input->OneOf({100, 1, 1000});
  options->pool_clean_fraction = input->OneOf({0.1, 0.0, 0.5});
  options->host_clean_fraction = input->OneOf({0.1, 0.0, 0.5});
  options->persist_after_ms = input->OneOf({int64_t{1000}, int64_t{1}, kMinuteMs});
  options->pin_fraction = input->OneOf({0.5, 0.1, 0.9});
  const uint32_t part = input->OneOf({1024u, 1u, 3u});
  options->acquire_part_blocks = options->search_part_blocks = part;
  options->close_part_blocks = options->drain_part_rows = part;
  options->max_references_per_session = input->OneOf({1u << 20, 8u, 24u});
  const uint64_t in_flight = input->OneOf({64 * kKiB, 8 * kKiB, 1 * kMiB});
  options->max_load_bytes = options->max_offload_bytes = in_flight;
  options->max_disk_read_bytes = options->max_disk_write_bytes = in_flight;
  options->layer_piece_bytes = 1;
  options->token_bytes = 1 * kKiB;
}

}  // namespace

ModelRecord HostileModel(uint32_t number) {
  ModelRecord record;
  record.name = "model-" + std::to_string(number);
  record.groups[0].layers = 2;
  record.groups[0].kv_heads = 1 + number;
  record.groups[0].k_head_dim = 32;
  record.groups[0].v_head_dim = 32;
  record.groups[0].dtype = KvDtype::kBfloat16;
  record.groups[0].block_tokens = 16;
  return record;
}

HostileSetup::HostileSetup(FuzzInput* input) {
  tenants = 1 + input->Below(2);
  pool_blocks = input->OneOf({12u, 4u, 24u});
  event_order = input->Below(4);
  DrawCacheOptions(input, &config.cache);
  sizes.slab_bytes = config.cache.slab_bytes;
  sizes.devices = 1 + input->Below(2);
  sizes.host_slabs = 1 + input->Below(3);
  sizes.host_slabs_ready = input->Below(8) == 7 ? 0 : sizes.host_slabs;
  sizes.disk_files = input->OneOf({1u, 2u, 0u});
  sizes.disk_slabs =
      sizes.disk_files == 0 ? 0 : std::max<uint32_t>(sizes.disk_files, 1 + input->Below(4));
  for (uint32_t tenant = 1; tenant <= tenants; ++tenant) {
    config.tenants.push_back({.name = "tenant-" + std::to_string(tenant), .uids = {tenant}});
    // Nothing of the second is kept.
    if (tenant == 1) config.cache.token_tenants = {config.tenants.back().name};
    if (!input->Flag()) continue;
    TenantQuota quota = DrawQuota(input, config.cache.slab_bytes);
    quota.name = config.tenants.back().name;
    config.cache.tenants.push_back(quota);
  }
  config.cache.pool_bytes = 0;
  for (uint32_t model = 0; model < kModels; ++model) {
    config.cache.pool_bytes += tenants * pool_blocks * HostileModel(model).groups[0].BlockBytes();
  }
  sizes.device_bytes = config.cache.pool_bytes + kRegionBytes;
  config.server.socket = SocketPath();
  config.server.max_clients = 8;
  config.server.hello_timeout_ms = config.server.slow_reader_timeout_ms = kNeverMs;
  config.log.level = LogLevel::kError;
  KVT_CHECK(config.cache.Validate().has_value());
}

Result<Peer> HostileWorld::Peers::Inspect(int) {
  return Peer{next->pid, next->uid, next->uid, UniqueFd(::dup(next->ended.get()))};
}

HostileWorld::HostileWorld(const HostileSetup& setup)
    : setup_(setup),
      pool_fd_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
      machine_(setup.sizes, setup.event_order),
      log_(setup_.config.log),
      models_(setup_.config.server.max_models_per_tenant, 16),
      settled_(&loop_) {
  if (setup_.event_order > 0) machine_.loop.Shuffle(setup_.event_order);
  for (const auto& device : machine_.devices) device->ShareDescriptor(pool_fd_.get());
  cache_ = std::make_unique<Cache>(setup_.config.cache, machine_.Environment(), IndexSnapshot{});
  for (uint32_t i = 0; i < setup_.sizes.devices; ++i) {
    wire_devices_.devices.push_back({.pool_bytes = setup_.sizes.device_bytes, .name = "fake"});
  }
  kept_memories_ =
      std::make_unique<KeptMemories>(KeptMemories::Environment{.config = &setup_.config,
                                                               .loop = &loop_,
                                                               .clock = &machine_.clock,
                                                               .log = &log_,
                                                               .closer = &network_.closer,
                                                               .devices = &wire_devices_});
  const SessionEnvironment sessions{.config = &setup_.config,
                                    .loop = &loop_,
                                    .clock = &machine_.clock,
                                    .log = &log_,
                                    .network = &network_,
                                    .cache = cache_.get(),
                                    .models = &models_,
                                    .counters = &counters_,
                                    .devices = &wire_devices_,
                                    .kept_memories = kept_memories_.get(),
                                    .daemon_generation = 42};
  server_ = std::make_unique<Server>(sessions, &peers_, TenantMap(setup_.config.tenants, 0));
  const Status listens = server_->Listen();
  KVT_CHECK(listens.has_value());
}

HostileWorld::~HostileWorld() {
  server_.reset();
  cache_.reset();
  machine_.loop.DropAll();
}

UniqueFd HostileWorld::Connect(const HostileProcess& process) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, SocketPath().c_str(), sizeof(address.sun_path) - 1);
  KVT_CHECK(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
            0);
  peers_.next = &process;
  Settle();
  return socket;
}

// A timer of no delay runs after whatever was ready when it was started. Its rounds are as many as
// the longest chain of such events: the end of a stream, its turn, the session's end, its
// destruction.
void HostileWorld::Settle() {
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    bool done = false;
    settled_.Start(0, [&done] { done = true; });
    loop_.RunUntil([&done] { return done; });
  }
}

void HostileWorld::UnpinEverything() {
  BlockWalk walk;
  do {
    walk = cache_->Walk(walk.next_cursor, 1024, 1024, {});
    for (const BlockRecord& block : walk.blocks) {
      const auto unpinned = cache_->Pin(block.key.namespace_id, std::vector{block.key.hash}, 0);
      KVT_CHECK(unpinned.has_value());
    }
  } while (!walk.finished);
}

// Blocks that cannot be written must be given up: the daemon would wait for them until its
// deadline. Clients may still be there, and pins, and unanswered requests.
void HostileWorld::Stop() {
  constexpr int kSeconds = 40;  // writing pauses for ten seconds after a failure
  machine_.SetDiskFaultRates({});
  FakeArena& arena = *machine_.arena;
  arena.Grow(arena.capacity_bytes() - arena.ready_bytes());
  server_->CloseSessions({ErrorCode::kUnavailable, "shutting_down", ""});
  Settle();
  bool drained = false;
  cache_->Drain([&drained] { drained = true; });
  for (int second = 0; second < kSeconds && !drained; ++second) {
    machine_.loop.RunAll();
    Settle();
    machine_.clock.Advance(1000);
    cache_->Tick();
  }
  KVT_CHECK(drained);
}

void HostileWorld::Finish() {
  constexpr int kRounds = 200;
  UnpinEverything();
  for (int round = 0; round < kRounds; ++round) {
    machine_.loop.RunAll();
    Settle();
    if (cache_->Idle() && machine_.loop.pending() == 0) break;
    machine_.clock.Advance(kMinuteMs / 4);
    cache_->Tick();
  }
  KVT_CHECK(cache_->Idle());
  cache_->CheckInvariants();
  CheckNothingHeld();
}

void HostileWorld::CheckNothingHeld() {
  KVT_CHECK(server_->session_count() == 0 && server_->quarantined_sessions() == 0);
  const CacheGauges gauges = cache_->Gauges();
  KVT_CHECK(gauges.references == 0 && gauges.sessions == 0 && gauges.acquires_waiting == 0);
  for (const PoolGauges& pool : gauges.pools) {
    KVT_CHECK(pool.free + pool.cached == pool.blocks);
  }
}

}  // namespace kvtier
