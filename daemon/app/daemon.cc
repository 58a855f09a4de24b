// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "base/executor.h"
#include "base/machine.h"
#include "base/units.h"
#include "daemon/config/config_check.h"
#include "daemon/config/reload.h"
#include "daemon/config/tenants.h"
#include "daemon/keeper/store_opening.h"
#include "daemon/runtime/process.h"
#include "daemon/runtime/process_end.h"
#include "gpu/cuda_device.h"
#include "gpu/host_device.h"

namespace kvtier {
namespace {

// Fine enough for waits of max_wait_ms, coarse enough to cost nothing measurable.
constexpr int64_t kTickMs = 100;
// How often the heap is looked at for memory to return to the system.
constexpr int64_t kTrimMs = 5000;
// Models of a tenant that have metrics of their own, those registered first. Each has 13 series;
// the others are summed up without a model's name, so that clients cannot flood Prometheus.
constexpr uint32_t kLabelledModels = 16;
// systemd is told to wait: the driver takes seconds to start, and GPUs with pools of an earlier
// daemon are opened.
constexpr int64_t kDevicePatienceMs = 120 * 1000;
constexpr int64_t kKernelsPatienceMs = 60 * 1000;
// Copies of a dead daemon end with its context on the device, a moment after its files.
constexpr int64_t kLateCopiesMs = 5000;

// The exit code of any failure: systemd starts the daemon again, and the new process finds the disk
// tier as it was.
constexpr int kExitDeviceLost = 1;

// Random and not counted: nothing has to be stored, and a client notices a new process with near
// certainty.
uint64_t RandomGeneration() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

Status MakeParentDirectory(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (parent.empty() || std::filesystem::exists(parent, error)) return {};
  if (!std::filesystem::create_directory(parent, error)) {
    return MakeError(ErrorCode::kInvalidArgument, "socket_directory",
                     fmt::format("{} cannot be made: {}; kvtierd --dev needs no rights of root",
                                 parent.string(), error.message()));
  }
  // The process's umask keeps other users out of its files, but the socket in this directory is
  // meant for them. A failure shows itself when clients connect.
  std::filesystem::permissions(parent, std::filesystem::perms(0755), error);
  return {};
}

}  // namespace

Daemon::Daemon(const Config& config, EventLoop* loop, Log* log, PeerInspector* peers,
               ServiceManager* manager)
    : config_(config),
      loop_(loop),
      log_(log),
      peers_(peers),
      manager_(manager),
      network_(loop),
      trace_(config.trace.events),
      tick_(loop) {}

Daemon::~Daemon() {
  if (!ends_in_background_ || descriptors_->entries().empty()) return;
  // Unmapping and unpinning host memory and destroying a GPU's context take seconds. The process
  // ends after this, and its teardown process does all that while the next daemon starts.
  arena_->LeaveMapped();
  for (OpenedDevice& opened : devices_) {
    if (opened.kind == wire::DeviceKind::kCuda) (void)opened.device.release();
  }
}

Status Daemon::Start() {
  log_->Info("daemon.starting", "kvtierd {}, pid {}", Version(), ::getpid());
  executor_ = std::make_unique<ThreadExecutor>("kvt-work", static_cast<int>(WorkerThreads()), loop_,
                                               ThreadExecutor::Priority::kBackground);
  // The disk tier comes first, because its lock tells whether another daemon runs here: that
  // daemon's sockets must then not be touched.
  {
    // A GPU's driver takes a tenth of a second to start, and the disk's lock may have to be waited
    // for.
    std::jthread driver_start;
    if (MayUseCuda()) driver_start = std::jthread([] { (void)FindCudaDevices(); });
    KVT_RETURN_IF_ERROR(OpenDisk());
    OpenKeptPools();
    KVT_RETURN_IF_ERROR(OpenCold());
  }
  manager_->ExtendStart("Opening the devices", kDevicePatienceMs);
  KVT_RETURN_IF_ERROR(AnnotateWithKey(config_, "pool.device", OpenDevices()));
  manager_->ExtendStart("Trying out the kernels", kKernelsPatienceMs);
  AttentionService::Environment attention{
      .config = &config_.kernels,
      .clock = &clock_,
      .loop = loop_,
      .log = log_,
      .on_fatal = [this](const std::string& error) { EndForLostDevice(error); }};
  for (const OpenedDevice& opened : devices_) attention.devices.push_back(opened.device.get());
  attention_ = std::make_unique<AttentionService>(attention);
  KVT_RETURN_IF_ERROR(AnnotateWithKey(config_, "host.bytes", OpenArena()));
  EndInBackground();
  MakeEvents();
  MakeCache();
  MakeServers();
  KVT_RETURN_IF_ERROR(Listen());
  TickForever();
  // Touching and pinning host memory comes last: it goes on in the background, and holds up
  // whatever maps memory, starts threads or launches kernels at the same time.
  arena_->Prepare();
  log_->Info("server.ready", "serving on {}, admin on {}, after {} ms", config_.server.socket,
             config_.server.admin_socket, clock_.MonotonicMs() - started_ms_);
  return {};
}

void Daemon::OpenDescriptors() {
  if (descriptors_) return;
  descriptors_ = OpenDescriptorStore({.socket = config_.server.socket,
                                      .keep_for_ms = config_.restart.keep_for_ms,
                                      .loop = loop_,
                                      .log = log_});
}

Status Daemon::OpenDisk() {
  const auto take_keys = [this] {
    OpenDescriptors();
    return descriptors_->Take(kDiskKeysName);
  };
  Result<std::unique_ptr<DiskTier>> opened = AnnotateWithKey(
      config_, "disk.directory",
      DiskTier::Open(config_, clock_, loop_, executor_.get(), log_, manager_, take_keys));
  if (!opened && !MayServeWithoutDisk(opened.error())) {
    return tl::unexpected(std::move(opened).error());
  }
  if (!opened) {
    // The next daemon needs the keys of the blocks that are there.
    OpenDescriptors();
    without_disk_ = opened.error();
    unused_keys_ = descriptors_->Take(kDiskKeysName);
    opened = DiskTier::Unavailable(config_, opened.error(), log_, manager_);
  }
  disk_ = *std::move(opened);
  if (disk_->keys_descriptor() < 0) return {};
  const Status kept = descriptors_->Keep(kDiskKeysName, disk_->keys_descriptor());
  if (!kept && config_.disk.root_key.empty()) {
    log_->Warning("disk.keys_not_kept",
                  "a restart will lose the blocks on disk, for the encryption keys end with this "
                  "process: {}",
                  kept.error().ToString());
  }
  return {};
}

Status Daemon::OpenCold() {
  KVT_ASSIGN_OR_RETURN(
      cold_, AnnotateWithKey(config_, "cold.endpoint",
                             ColdTier::Open(config_, &clock_, loop_, executor_.get(), log_)));
  return {};
}

Status Daemon::OpenDevices() {
  const DeviceEnvironment environment{
      .gpus = &gpus_,
      .loop = loop_,
      .executor = executor_.get(),
      .log = log_,
      .memory = ReadMachineMemory(),
      .on_fatal = [this](const std::string& error) { EndForLostDevice(error); },
      .kept_bytes = [this](const DeviceInfo& device) { return kept_pools_->BytesOn(device); }};
  KVT_ASSIGN_OR_RETURN(OpenedDevices opened, kvtier::OpenDevices(config_, environment));
  pinner_ = std::move(opened.pinner);
  devices_ = std::move(opened.all);
  // A share of the free memory is never the same twice.
  kept_pools_->SetDevices(&devices_, /*same_size=*/config_.pool.free_fraction <= 0);
  return {};
}

void Daemon::WatchForDisk(std::function<void()> on_back) {
  if (!without_disk_ || !DiskMayComeBack(*without_disk_)) return;
  disk_retry_ = std::make_unique<DiskRetry>(
      loop_, executor_.get(),
      [disk = config_.disk, slab_bytes = config_.cache.slab_bytes] {
        return ProbeDisk(disk, slab_bytes);
      },
      std::move(on_back));
}

void Daemon::OpenKeptPools() {
  OpenDescriptors();
  kept_pools_ = std::make_unique<KeptPools>(descriptors_.get(), log_);
}

void Daemon::WatchFormerClients(const Quarantine::KernelsRemain& kernels_remain) {
  former_clients_ = std::make_unique<FormerClients>(
      loop_, log_, cache_->TakeAbsentClients(),
      FormerClients::Options{.copies_until_ms = UsesCuda() ? kLateCopiesMs : 0}, kernels_remain,
      [this](SessionId session) { cache_->ReleaseQuarantine(session); });
}

void Daemon::EndForLostDevice(const std::string& error) {
  // Nothing of the context can be used any more, not even to take it down in order. Blocks on disk
  // survive, and are there for the next process.
  log_->Error("device.lost", "the GPU's context is broken, ending: {}", error);
  std::_Exit(kExitDeviceLost);
}

Status Daemon::OpenArena() {
  const uint32_t threads = WorkerThreads();
  MappedArenaOptions options{
      .bytes = config_.host.bytes,
      .slab_bytes = config_.cache.slab_bytes,
      .touch_threads = static_cast<int>(threads),
      .pinner = pinner_.get(),
      .numa_node = CommonNumaNode(devices_),
      // Without a holder the memory ends with the process, and anonymous memory is had sooner.
      .keep = KeepsMemory(),
      .log = [log = log_](const std::string& note) { log->Warning("host.degraded", "{}", note); },
      .on_complete =
          [this](const ArenaTimes& times) {
            log_->Info("host.complete",
                       "{} of host memory ready after {:.2f} s: {:.2f} s for pages, {:.2f} s for "
                       "pinning",
                       FormatByteSize(arena_->capacity_bytes()), times.seconds, times.pages_s,
                       times.pin_s);
          }};
  const bool keep = options.keep;
  if (keep) {
    options.kept_arena = descriptors_->Take(kHostArenaName).value_or(UniqueFd());
    options.kept_table = descriptors_->Take(kHostTableName).value_or(UniqueFd());
  }
  KVT_ASSIGN_OR_RETURN(arena_, MappedArena::Create(std::move(options), loop_));
  log_->Info("host.open", "{} of host memory, {} thread(s) to touch it and for checksums",
             FormatByteSize(arena_->capacity_bytes()), threads);
  if (keep) KeepArena();
  // Unclaimed descriptors belonged to a daemon with other settings, or of another version: none
  // will ask for them.
  descriptors_->ReleaseUnclaimed();
  return {};
}

bool Daemon::KeepsMemory() const { return descriptors_->holder().name != "none"; }

bool Daemon::MayUseCuda() const {
  return std::ranges::any_of(config_.pool.devices,
                             [](DeviceChoice asked) { return asked != DeviceChoice::kHost; });
}

bool Daemon::UsesCuda() const {
  return std::ranges::any_of(
      devices_, [](const OpenedDevice& opened) { return opened.kind == wire::DeviceKind::kCuda; });
}

void Daemon::EndInBackground() {
  if (!KeepsMemory()) return;
  const Status started = StartTeardownProcess();
  ends_in_background_ = started.has_value();
  if (!started) {
    log_->Warning("restart.slow", "the next daemon can start only when all of this one is gone: {}",
                  started.error().ToString());
  }
}

void Daemon::KeepArena() {
  if (arena_->adoption() == "adopted") {
    log_->Info("host.adopted", "host memory of an earlier daemon is there again, to be verified");
  } else if (arena_->adoption() != "none") {
    log_->Info("host.not_adopted", "host memory begins empty: {}", arena_->adoption());
  }
  for (const auto& [name, descriptor] : {std::pair(kHostArenaName, arena_->arena_descriptor()),
                                         std::pair(kHostTableName, arena_->table_descriptor())}) {
    const Status kept = descriptors_->Keep(name, descriptor);
    if (kept) continue;
    log_->Warning("keeper.none", "{} is not kept over a restart: {}", name,
                  kept.error().ToString());
    return;
  }
}

void Daemon::MakeCache() {
  cache_owner_ = std::make_unique<DaemonCacheOwner>(loop_, log_, attention_.get());
  CacheEnvironment environment{.clock = &clock_,
                               .loop = loop_,
                               .executor = executor_.get(),
                               .lent_host_memory = cache_owner_->lent_host_memory(),
                               .arena = arena_.get(),
                               .pool_keeper = kept_pools_.get(),
                               .cold = cold_ ? cold_->store() : nullptr,
                               .tracer = &trace_,
                               .events = events_ ? events_->sink() : nullptr,
                               .owner = cache_owner_.get()};
  for (const OpenedDevice& opened : devices_) {
    environment.devices.push_back({opened.device.get(), opened.pool_bytes});
  }
  IndexSnapshot snapshot = disk_->Join(&environment);
  WarnOfReserves(environment);
  CacheOptions options = config_.cache;
  options.token_tenants = config_.events.token_ids;
  options.token_bytes = config_.events.token_bytes;
  cache_ = std::make_unique<Cache>(options, std::move(environment), std::move(snapshot));
  disk_->Watch(clock_, executor_.get(), [this] { cache_->StopDiskWrites(); });
}

// The configuration was checked against itself only. The disk may be smaller than configured, and
// the devices' memory is known only now.
void Daemon::WarnOfReserves(const CacheEnvironment& environment) {
  const CacheOptions& options = config_.cache;
  const uint64_t disk_slabs = ReservedSlabs(options.tenants, Tier::kDisk, options.slab_bytes);
  if (disk_slabs > 0 && disk_slabs >= environment.geometry.slabs) {
    log_->Warning("quota.disk_short",
                  "{} slabs of the disk are reserved for tenants and there are {}: not all can be "
                  "kept, and others may find no room",
                  disk_slabs, environment.geometry.slabs);
  }
  const uint64_t reserved_bytes = ReservedPoolBytes(options.tenants);
  uint64_t pool_bytes = 0;
  for (const PoolDevice& device : environment.devices) pool_bytes += device.pool_bytes;
  if (reserved_bytes > pool_bytes) {
    log_->Warning("quota.pool_short", "{} of pools are reserved for tenants and there are {}",
                  FormatByteSize(reserved_bytes), FormatByteSize(pool_bytes));
  }
}

Quarantine::KernelsRemain Daemon::KernelsRemain() {
  std::vector<int> ordinals;
  for (const OpenedDevice& opened : devices_) {
    if (opened.kind == wire::DeviceKind::kCuda) ordinals.push_back(opened.device->info().ordinal);
  }
  if (ordinals.empty()) return {};
  return [this, ordinals](int32_t pid, std::function<void(bool)> answer) {
    const auto found = std::make_shared<bool>(false);
    // Asking the driver takes milliseconds.
    executor_->Run(
        [ordinals, pid, found] {
          for (const int ordinal : ordinals) *found |= HoldsVramOf(ordinal, pid);
        },
        [found, answer = std::move(answer)] { answer(*found); });
  };
}

void Daemon::MakeServers() {
  wire_devices_ = WireDevices();
  models_ = std::make_unique<ModelRegistry>(config_.server.max_models_per_tenant, kLabelledModels);
  const Quarantine::KernelsRemain kernels_remain = KernelsRemain();
  WatchFormerClients(kernels_remain);
  kept_memories_ =
      std::make_unique<KeptMemories>(KeptMemories::Environment{.config = &config_,
                                                               .loop = loop_,
                                                               .clock = &clock_,
                                                               .log = log_,
                                                               .closer = &network_.closer,
                                                               .devices = &wire_devices_,
                                                               .kernels_remain = kernels_remain});
  const SessionEnvironment sessions{.config = &config_,
                                    .loop = loop_,
                                    .clock = &clock_,
                                    .log = log_,
                                    .network = &network_,
                                    .cache = cache_.get(),
                                    .models = models_.get(),
                                    .counters = &counters_,
                                    .tracer = &trace_,
                                    .devices = &wire_devices_,
                                    .attention = attention_.get(),
                                    .kept_memories = kept_memories_.get(),
                                    .former_clients = former_clients_.get(),
                                    .pools_are_kept = kept_pools_->keeps(),
                                    .daemon_generation = RandomGeneration()};
  server_ = std::make_unique<Server>(sessions, peers_, TenantMap(config_.tenants, ::geteuid()),
                                     kernels_remain);
  shutdown_ =
      std::make_unique<Shutdown>(Shutdown::Environment{.config = &config_,
                                                       .loop = loop_,
                                                       .clock = &clock_,
                                                       .log = log_,
                                                       .manager = manager_,
                                                       .server = server_.get(),
                                                       .cache = cache_.get(),
                                                       .pools_are_kept = kept_pools_->keeps()});
  metrics_sources_ = {.config = &config_,
                      .loop = loop_,
                      .loop_lag = &loop_lag_,
                      .history = &history_,
                      .clock = &clock_,
                      .started_ms = started_ms_,
                      .disk = &disk_->facts(),
                      .devices = &devices_,
                      .cache = cache_.get(),
                      .models = models_.get(),
                      .counters = &counters_,
                      .server = server_.get(),
                      .attention = attention_.get(),
                      .events = events_.get(),
                      .kept_memories = kept_memories_.get(),
                      .descriptors = descriptors_.get(),
                      .arena = arena_.get(),
                      .kept_pools = kept_pools_.get(),
                      .former_clients = former_clients_.get()};
  admin_operations_ = std::make_unique<AdminOperations>(AdminOperations::Environment{
      .basics = {.cache = cache_.get(), .loop = loop_, .clock = &clock_},
      .config = &config_,
      .log = log_,
      .trace = &trace_,
      .descriptors = descriptors_.get(),
      .models = models_.get(),
      .kept_memories = kept_memories_.get(),
      .server = server_.get(),
      .metrics = &metrics_sources_});
  admin_server_ = std::make_unique<AdminServer>(&network_, log_, peers_, admin_operations_.get());
}

Status Daemon::Listen() {
  const std::string& admin_socket = config_.server.admin_socket;
  KVT_RETURN_IF_ERROR(
      AnnotateWithKey(config_, "server.admin_socket", MakeParentDirectory(admin_socket)));
  KVT_RETURN_IF_ERROR(
      AnnotateWithKey(config_, "server.socket", MakeParentDirectory(config_.server.socket)));
  KVT_RETURN_IF_ERROR(
      AnnotateWithKey(config_, "server.admin_socket", admin_server_->Listen(admin_socket)));
  // The clients' socket is bound last: a client that can connect finds everything else in place.
  KVT_RETURN_IF_ERROR(AnnotateWithKey(config_, "metrics.listen", ListenForMetrics()));
  KVT_RETURN_IF_ERROR(AnnotateWithKey(config_, "events.endpoint", ListenForEvents()));
  return AnnotateWithKey(config_, "server.socket", server_->Listen());
}

void Daemon::LogDifferences(const Config& wanted) const {
  const ConfigDifferences differences = CompareConfigs(config_, wanted);
  for (const ConfigDifference& key : differences.now) {
    log_->Info("config.changed", "{}: {}: {} instead of {}", key.place, key.key, key.wanted,
               key.running);
  }
  for (const ConfigDifference& key : differences.restart) {
    log_->Warning("config.needs_restart", "{}: {}: {} is wanted, {} stays until a restart{}",
                  key.place, key.key, key.wanted, key.running, CostOfRestart(key.key));
  }
  log_->Info("config.reloaded", "{} key(s) changed, {} wait for a restart", differences.now.size(),
             differences.restart.size());
}

Status Daemon::Reload(const Config& wanted) {
  const Config taken = TakeReloadable(config_, wanted);
  // The settings that are taken must also go with those that stay.
  KVT_RETURN_IF_ERROR(CheckConfig(taken));
  // Checked with `wanted`, although sizes wait for a restart: the restart must not be the moment at
  // which pinned blocks turn out not to fit.
  KVT_RETURN_IF_ERROR(CheckPinnedFit(wanted, cache_->PinnedBytes()));
  KVT_RETURN_IF_ERROR(cache_->Reconfigure(taken.cache));
  LogDifferences(wanted);
  // From here on nothing can fail: the parts see the new values through their pointers.
  config_ = taken;
  log_->SetLevel(config_.log.level);
  server_->SetTenants(TenantMap(config_.tenants, ::geteuid()));
  return {};
}

Status Daemon::ListenForMetrics() {
  if (config_.metrics.listen.empty()) return {};
  KVT_ASSIGN_OR_RETURN(metrics_server_,
                       MetricsServer::Start(config_.metrics, loop_, &loop_lag_, [this] {
                         return TakeMetricsSnapshot(metrics_sources_);
                       }));
  log_->Info("metrics.listening", "{} for people, {}metrics for Prometheus", metrics_server_->Url(),
             metrics_server_->Url());
  return {};
}

void Daemon::MakeEvents() {
  if (config_.events.endpoint.empty()) return;
  events_ = std::make_unique<EventService>(
      config_.events, loop_, &clock_, log_,
      [this](const NamespaceIdentity& identity) -> std::optional<EventStream::Name> {
        const auto group = models_->FindGroup(identity.tenant, identity.model);
        if (!group) return std::nullopt;
        EventStream::Name name{.model = group->model->record.name, .group = std::nullopt};
        if (group->model->groups.size() > 1) name.group = group->index;
        return name;
      });
}

Status Daemon::ListenForEvents() {
  if (events_ == nullptr) return {};
  return events_->Listen(cache_.get());
}

void Daemon::TickForever() {
  tick_.Start(kTickMs, [this] {
    // First, so that the work of this tick does not count as lateness of its timer.
    loop_lag_.ObserveTick(kTickMs);
    history_.Tick(cache_->stats(), clock_.MonotonicMs());
    cache_->Tick();
    disk_->Tick();
    kept_memories_->Tick();
    if (events_) events_->Tick();
    if (clock_.MonotonicMs() >= trim_at_ms_) TrimHeap();
    TickForever();
  });
}

void Daemon::TrimHeap() {
  trim_at_ms_ = clock_.MonotonicMs() + kTrimMs;
  // On a thread of the executor, because returning hundreds of MiB takes milliseconds.
  executor_->Run([] { ReleaseFreedMemory(); }, nullptr);
}

wire::DevicesReply Daemon::WireDevices() const {
  wire::DevicesReply reply;
  for (const OpenedDevice& opened : devices_) {
    const DeviceInfo info = opened.device->info();
    reply.devices.push_back({.kind = opened.kind,
                             .uuid = info.uuid,
                             .pool_bytes = opened.pool_bytes,
                             .name = info.name.substr(0, wire::kMaxDeviceNameBytes)});
  }
  return reply;
}

std::string Daemon::WhatStaysKept() const {
  uint64_t bytes = 0;
  for (const DescriptorStore::Entry& entry : descriptors_->entries()) bytes += entry.bytes;
  if (bytes == 0) return "nothing stays kept";
  const DescriptorStore::Holder holder = descriptors_->holder();
  return fmt::format("{} stay in memory, kept by {} until {}", FormatByteSize(bytes), holder.name,
                     holder.until);
}

void Daemon::BeginShutdown(std::function<void()> finished) {
  shutdown_->Begin(std::move(finished));
}

}  // namespace kvtier
