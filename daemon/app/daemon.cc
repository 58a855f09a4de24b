// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/daemon.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <utility>

#include "base/posix.h"
#include "base/units.h"
#include "daemon/config/config_check.h"
#include "daemon/config/reload.h"
#include "daemon/config/tenants.h"
#include "daemon/metrics/http_server.h"
#include "daemon/net/acceptor.h"
#include "daemon/runtime/process.h"

namespace kvtier {
namespace {

// Fine enough for waits of max_wait_ms, coarse enough to cost nothing measurable.
constexpr int64_t kTickMs = 100;
// Models of a tenant that have metrics of their own, those registered first. Each has 13 series;
// the others are summed up without a model's name, so that clients cannot flood Prometheus.
constexpr uint32_t kLabelledModels = 16;
// systemd is told to wait: the driver takes seconds to start, and GPUs with pools of an earlier
// daemon are opened.
constexpr int64_t kSocketsPatienceMs = 120 * 1000;
constexpr int64_t kDevicePatienceMs = 120 * 1000;
constexpr int64_t kKernelsPatienceMs = 60 * 1000;
// Copies of a dead daemon end with its context on the device, a moment after its files.
constexpr int64_t kLateCopiesMs = 5000;

// The kernel closes the sockets of a process that has ended after it has given back its memory. All
// together, since they are one process's: the error is told before systemd's patience ends.
constexpr auto kEndPatience = std::chrono::seconds(90);

// Random and not counted: nothing has to be stored, and a client notices a new process with near
// certainty.
uint64_t RandomGeneration() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// Makes the directory that a socket will be in, and refuses a path that another daemon listens on.
Status PrepareSocket(const std::string& path, std::chrono::steady_clock::time_point until) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (parent.empty() || std::filesystem::exists(parent, error)) {
    return Acceptor::CheckFree(path, until);
  }
  if (!std::filesystem::create_directory(parent, error) && error) {
    return tl::unexpected(
        ErrnoError(ErrorCode::kIoError, error.value(), "make the directory " + parent.string()));
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
      resources_(
          {.config = &config_, .clock = &clock_, .loop = loop, .log = log, .manager = manager}),
      metrics_sources_{.started_ms = clock_.MonotonicMs()},
      tick_(loop) {}

Daemon::~Daemon() = default;

Status Daemon::Start() {
  log_->Info("daemon.starting", "kvtierd {}, pid {}", Version(), ::getpid());
  // The keeper of memory has its socket beside the daemon's. Another daemon's sockets and then its
  // disk tier's lock tell of it before anything is changed; this one's sockets are made last.
  manager_->Extend("Looking for another daemon", kSocketsPatienceMs);
  KVT_RETURN_IF_ERROR(PrepareSockets());
  KVT_RETURN_IF_ERROR(resources_.OpenStores());
  manager_->Extend("Opening the devices", kDevicePatienceMs);
  KVT_RETURN_IF_ERROR(AnnotateWithKey(config_, "pool.device", resources_.OpenDevices()));
  manager_->Extend("Trying out the kernels", kKernelsPatienceMs);
  AttentionService::Environment attention{
      .config = &config_.kernels,
      .clock = &clock_,
      .loop = loop_,
      .log = log_,
      .on_fatal = [log = log_](const std::string& error) { EndForLostDevice(log, error); }};
  for (const OpenedDevice& opened : resources_.devices())
    attention.devices.push_back(opened.device.get());
  attention_ = std::make_unique<AttentionService>(attention);
  KVT_RETURN_IF_ERROR(AnnotateWithKey(config_, "host.bytes", resources_.OpenArena()));
  MakeEvents();
  MakeCache();
  MakeServers();
  KVT_RETURN_IF_ERROR(Listen());
  TickForever();
  // Touching and pinning host memory comes last: it goes on in the background, and holds up
  // whatever maps memory, starts threads or launches kernels at the same time.
  resources_.arena()->Prepare();
  log_->Info("server.ready", "serving on {}, admin on {}, after {} ms", config_.server.socket,
             config_.server.admin_socket, clock_.MonotonicMs() - metrics_sources_.started_ms);
  return {};
}

void Daemon::WatchFormerClients(const Quarantine::KernelsRemain& kernels_remain) {
  former_clients_ = std::make_unique<FormerClients>(
      loop_, log_, cache_->TakeAbsentClients(),
      FormerClients::Options{.copies_until_ms = resources_.UsesCuda() ? kLateCopiesMs : 0},
      kernels_remain, [this](SessionId session) { cache_->ReleaseQuarantine(session); });
}

void Daemon::MakeCache() {
  cache_owner_ = std::make_unique<DaemonCacheOwner>(loop_, log_, attention_.get());
  CacheEnvironment environment{.clock = &clock_,
                               .loop = loop_,
                               .executor = resources_.executor(),
                               .lent_host_memory = cache_owner_->lent_host_memory(),
                               .arena = resources_.arena(),
                               .pool_keeper = resources_.kept_pools(),
                               .cold = resources_.cold_store(),
                               .tracer = &trace_,
                               .events = events_ ? events_->sink() : nullptr,
                               .owner = cache_owner_.get()};
  for (const OpenedDevice& opened : resources_.devices()) {
    environment.devices.push_back({opened.device.get(), opened.pool_bytes});
  }
  IndexSnapshot snapshot = resources_.disk()->Join(&environment);
  WarnOfReserves(environment);
  CacheOptions options = config_.cache;
  options.token_tenants = config_.events.token_ids;
  options.token_bytes = config_.events.token_bytes;
  cache_ = std::make_unique<Cache>(options, std::move(environment), std::move(snapshot));
  cache_owner_->NameFiles(resources_.disk()->FileNames());
  resources_.disk()->Watch([this](uint32_t drive, const std::string& why, bool with_index) {
    return cache_->LoseDrive(drive, why, with_index);
  });
}

// The configuration was checked against itself only. The disk may be smaller than configured, and
// the devices' memory is known only now.
void Daemon::WarnOfReserves(const CacheEnvironment& environment) {
  const CacheOptions& options = config_.cache;
  const uint64_t disk_slabs = ReservedSlabs(options.tenants, Tier::kDisk, options.slab_bytes);
  if (disk_slabs > 0 && disk_slabs >= environment.geometry.slabs()) {
    log_->Warning("quota.disk_short",
                  "{} slabs of the disk are reserved for tenants and there are {}: not all can be "
                  "kept, and others may find no room",
                  disk_slabs, environment.geometry.slabs());
  }
  const uint64_t reserved_bytes = ReservedPoolBytes(options.tenants);
  uint64_t pool_bytes = 0;
  for (const PoolDevice& device : environment.devices) pool_bytes += device.pool_bytes;
  if (reserved_bytes > pool_bytes) {
    log_->Warning("quota.pool_short", "{} of pools are reserved for tenants and there are {}",
                  FormatByteSize(reserved_bytes), FormatByteSize(pool_bytes));
  }
}

void Daemon::MakeServers() {
  models_ = std::make_unique<ModelRegistry>(config_.server.max_models_per_tenant, kLabelledModels);
  const Quarantine::KernelsRemain kernels_remain = resources_.MakeKernelsRemain();
  WatchFormerClients(kernels_remain);
  kept_memories_ = std::make_unique<KeptMemories>(
      KeptMemories::Environment{.config = &config_,
                                .loop = loop_,
                                .clock = &clock_,
                                .log = log_,
                                .closer = &network_.closer,
                                .devices = &resources_.wire_devices(),
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
                                    .devices = &resources_.wire_devices(),
                                    .attention = attention_.get(),
                                    .kept_memories = kept_memories_.get(),
                                    .former_clients = former_clients_.get(),
                                    .pools_are_kept = resources_.kept_pools()->keeps(),
                                    .daemon_generation = RandomGeneration()};
  server_ = std::make_unique<Server>(sessions, peers_, TenantMap(config_.tenants, ::geteuid()),
                                     kernels_remain);
  shutdown_ = std::make_unique<Shutdown>(
      Shutdown::Environment{.config = &config_,
                            .loop = loop_,
                            .clock = &clock_,
                            .log = log_,
                            .manager = manager_,
                            .server = server_.get(),
                            .cache = cache_.get(),
                            .idle = [this] { return idle(); },
                            .pools_are_kept = resources_.kept_pools()->keeps()});
  metrics_sources_ = {.config = &config_,
                      .loop = loop_,
                      .loop_lag = &loop_lag_,
                      .history = &history_,
                      .clock = &clock_,
                      .started_ms = metrics_sources_.started_ms,
                      .disk = &resources_.disk()->facts(),
                      .devices = &resources_.devices(),
                      .cache = cache_.get(),
                      .models = models_.get(),
                      .counters = &counters_,
                      .server = server_.get(),
                      .attention = attention_.get(),
                      .events = events_.get(),
                      .kept_memories = kept_memories_.get(),
                      .descriptors = resources_.descriptors(),
                      .arena = resources_.arena(),
                      .kept_pools = resources_.kept_pools(),
                      .former_clients = former_clients_.get()};
  MakeAdmin();
}

void Daemon::MakeAdmin() {
  admin_operations_ = std::make_unique<AdminOperations>(AdminOperations::Environment{
      .basics = {.cache = cache_.get(), .loop = loop_, .clock = &clock_},
      .config = &config_,
      .log = log_,
      .trace = &trace_,
      .manager = manager_,
      .descriptors = resources_.descriptors(),
      .models = models_.get(),
      .kept_memories = kept_memories_.get(),
      .server = server_.get(),
      .metrics = &metrics_sources_,
      .disk = resources_.disk()});
  admin_server_ = std::make_unique<AdminServer>(
      &network_, log_, peers_, [this](std::string_view request, std::shared_ptr<AdminCall> call) {
        admin_operations_->Start(request, std::move(call));
      });
}

Status Daemon::PrepareSockets() const {
  const auto until = std::chrono::steady_clock::now() + kEndPatience;
  KVT_RETURN_IF_ERROR(AnnotateWithKey(config_, "server.admin_socket",
                                      PrepareSocket(config_.server.admin_socket, until)));
  return AnnotateWithKey(config_, "server.socket", PrepareSocket(config_.server.socket, until));
}

Status Daemon::Listen() {
  KVT_RETURN_IF_ERROR(AnnotateWithKey(config_, "server.admin_socket",
                                      admin_server_->Listen(config_.server.admin_socket)));
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
  // Checked with `wanted`, although some sizes wait for a restart: the restart must not be the
  // moment at which pinned blocks turn out not to fit.
  KVT_RETURN_IF_ERROR(CheckPinnedFit(wanted, cache_->Gauges().PinnedBytes()));
  KVT_RETURN_IF_ERROR(
      AnnotateWithKey(taken, "host.bytes", resources_.arena()->MayResize(taken.host.bytes)));
  KVT_RETURN_IF_ERROR(cache_->Reconfigure(taken.cache));
  LogDifferences(wanted);
  // From here on nothing can fail: the parts see the new values through their pointers.
  config_ = taken;
  cache_->Resize({.host_bytes = config_.host.bytes - config_.host.bytes % config_.cache.slab_bytes,
                  .disk = resources_.disk()->SlabsFor(config_.disk.bytes)});
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
      },
      HttpOwnerOf);
}

Status Daemon::ListenForEvents() {
  if (events_ == nullptr) return {};
  for (const std::string& text : UnknownTenantsTold(config_)) {
    log_->Warning("events.unknown_tenant", "{}", text);
  }
  return events_->Listen(cache_.get());
}

void Daemon::TickForever() {
  tick_.Start(kTickMs, [this] {
    // First, so that the work of this tick does not count as lateness of its timer.
    loop_lag_.ObserveTick(kTickMs);
    history_.Tick(cache_->stats(), clock_.MonotonicMs());
    cache_->Tick();
    resources_.Tick();
    kept_memories_->Tick();
    if (events_) events_->Tick();
    TickForever();
  });
}

void Daemon::BeginShutdown(std::function<void()> finished) {
  shutdown_->Begin(std::move(finished));
}

}  // namespace kvtier
