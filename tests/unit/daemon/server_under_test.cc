// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/server_under_test.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <future>

#include "base/result.h"
#include "daemon/config/config_check.h"

namespace kvtier {
namespace {

Config Adjusted(Config config, const std::function<void(Config*)>& adjust) {
  if (adjust) adjust(&config);
  KVT_CHECK(CheckConfig(config).has_value());
  return config;
}

// As many host devices as the configuration names devices.
std::vector<PoolDevice> MakeDevices(const Config& config, EventQueue* loop,
                                    std::deque<LateDevice>* devices) {
  std::vector<PoolDevice> made;
  for (size_t i = 0; i < config.pool.devices.size(); ++i) {
    made.push_back({&devices->emplace_back(loop)});
  }
  return made;
}

std::vector<Device*> PointersTo(std::deque<LateDevice>* devices) {
  std::vector<Device*> pointers;
  for (LateDevice& device : *devices) pointers.push_back(&device);
  return pointers;
}

wire::DevicesReply WireDevicesOf(const Config& config) {
  wire::DevicesReply reply;
  for (size_t i = 0; i < config.pool.devices.size(); ++i) {
    reply.devices.push_back({.pool_bytes = config.cache.pool_bytes, .name = "host memory"});
  }
  return reply;
}

int64_t ThreadTimeNs() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

FakeColdStore* Joined(FakeColdStore* cold, EventQueue* loop) {
  if (cold != nullptr) cold->loop = loop;
  return cold;
}

}  // namespace

Config SmallConfig(const std::filesystem::path& directory) {
  Config config;
  config.server.socket = directory / "kvtier.sock";
  config.server.admin_socket = directory / "admin.sock";
  // No client is cut off for being late, however busy the machine is.
  config.server.hello_timeout_ms = config.server.slow_reader_timeout_ms = kHourMs;
  config.pool.devices = {DeviceChoice::kHost};
  config.cache.pool_bytes = 256 * kKiB;
  config.cache.slab_bytes = 128 * kKiB;
  // Blocks that must leave the pool for an acquire are copied first, however busy the machine is.
  config.cache.max_wait_ms = kMinuteMs / 2;
  config.host.bytes = 2 * kMiB;
  config.disk.directory = directory / "disk";
  config.disk.free_floor_bytes = 0;
  config.restart.keep_for_ms = 0;
  config.log.level = LogLevel::kError;
  return config;
}

ServerUnderTest::ServerUnderTest(const std::function<void(Config*)>& adjust, FakeColdStore* cold,
                                 Kernel kernel, const NetworkLimits& limits)
    : config_(Adjusted(SmallConfig(directory_.path()), adjust)),
      log_(config_.log),
      arena_(MappedArena::Create(
                 {.bytes = config_.host.bytes, .slab_bytes = config_.cache.slab_bytes}, &loop_)
                 .value()),
      pool_devices_(MakeDevices(config_, &loop_, &devices_)),
      attention_({.devices = PointersTo(&devices_),
                  .config = &config_.kernels,
                  .clock = &clock_,
                  .loop = &loop_,
                  .log = &log_}),
      executor_("test", 1, &loop_),
      cache_(std::make_unique<Cache>(config_.cache,
                                     CacheEnvironment{.clock = &clock_,
                                                      .loop = &loop_,
                                                      .executor = &executor_,
                                                      .devices = pool_devices_,
                                                      .lent_host_memory = &lent_host_memory_,
                                                      .arena = arena_.get(),
                                                      .cold = Joined(cold, &loop_),
                                                      .owner = &owner},
                                     IndexSnapshot{})),
      network_(&loop_, limits),
      wire_devices_(WireDevicesOf(config_)),
      models_(config_.server.max_models_per_tenant, 16),
      kept_memories_({.config = &config_,
                      .loop = &loop_,
                      .clock = &clock_,
                      .log = &log_,
                      .closer = &network_.closer,
                      .devices = &wire_devices_}),
      server_(std::make_unique<Server>(SessionEnvironment{.config = &config_,
                                                          .loop = &loop_,
                                                          .clock = &clock_,
                                                          .log = &log_,
                                                          .network = &network_,
                                                          .cache = cache_.get(),
                                                          .models = &models_,
                                                          .counters = &counters_,
                                                          .tracer = &trace_,
                                                          .devices = &wire_devices_,
                                                          .attention = &attention_,
                                                          .kept_memories = &kept_memories_,
                                                          .daemon_generation = 42},
                                       &peers, TenantMap(config_.tenants, ::geteuid()))),
      tick_(&loop_) {
  network_.kernel_refuses_descriptors = kernel == Kernel::kRefusesDescriptors;
  KVT_CHECK(server_->Listen().has_value());
  arena_->Prepare();
  TickForever();
  thread_ = std::thread([this] { RunLoop(); });
  // Else it would depend on the arena's growth which blocks are offloaded, loaded or pinned.
  WaitUntil([this] { return arena_->ready_bytes() == arena_->capacity_bytes(); });
}

ServerUnderTest::~ServerUnderTest() {
  OnLoop([this] {
    server_->StopListening();
    server_->CloseSessions({ErrorCode::kUnavailable, "test_over", ""});
  });
  // Blocks that a session leaves behind are still moved: nothing may begin after this, or copies
  // would meet memory that is gone.
  WaitUntil([this] {
    if (server_->session_count() > 0 || !cache_->Idle()) return false;
    tick_.Cancel();
    return true;
  });
  OnLoop([this] { cache_->CheckInvariants(); });
  loop_.Stop();
  thread_.join();
  server_.reset();
  cache_.reset();
}

void ServerUnderTest::TickForever() {
  tick_.Start(1, [this] {
    cache_->Tick();
    kept_memories_.Tick();
    TickForever();
  });
}

void ServerUnderTest::RunLoop() {
  int64_t before_ns = ThreadTimeNs();
  loop_.RunUntil([&] {
    const int64_t now_ns = ThreadTimeNs();
    longest_event_ns_ = std::max(longest_event_ns_.load(), now_ns - before_ns);
    before_ns = now_ns;
    return false;
  });
}

void ServerUnderTest::OnLoop(const std::function<void()>& look) {
  std::promise<void> done;
  loop_.Post([&] {
    look();
    done.set_value();
  });
  done.get_future().wait();
}

void ServerUnderTest::WaitUntil(const std::function<bool()>& holds) {
  bool held = false;
  while (!held) OnLoop([&] { held = holds(); });
}

uint64_t ServerUnderTest::Refusals(const std::string& reason) {
  uint64_t count = 0;
  OnLoop([&] {
    const auto& refusals = counters_.refusals;
    const auto found = refusals.find(reason);
    if (found != refusals.end()) count = found->second;
  });
  return count;
}

std::vector<TraceEvent> ServerUnderTest::Traced(wire::MessageType message, TracePhase phase) {
  std::vector<TraceEvent> events;
  OnLoop([&] {
    for (uint64_t number = trace_.first(); number < trace_.end(); ++number) {
      const TraceEvent& event = trace_[number];
      if (event.kind != TraceKind::kRequest || event.phase != phase) continue;
      if (event.message == static_cast<uint8_t>(message)) events.push_back(event);
    }
  });
  return events;
}

}  // namespace kvtier
