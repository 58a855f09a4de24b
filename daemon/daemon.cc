#include "daemon/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <random>
#include <utility>

#include "base/byte_size.h"
#include "base/thread_executor.h"
#include "daemon/version.h"
#include "gpu/host_device.h"
#include "tiers/mapped_arena.h"

namespace kvtier {
namespace {

// Fine enough for waits of max_wait_ms, coarse enough to cost nothing.
constexpr int64_t kTickMs = 100;

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
                     fmt::format("{} cannot be made: {}", parent.string(), error.message()));
  }
  // The process's umask keeps others out of what it makes; the socket is for them.
  std::filesystem::permissions(parent, std::filesystem::perms(0755), error);
  return {};
}

}  // namespace

Daemon::Daemon(const Config& config, EventLoop* loop, Log* log, PeerInspector* peers)
    : config_(config),
      loop_(loop),
      log_(log),
      peers_(peers),
      started_ms_(clock_.MonotonicMs()),
      tick_(loop) {}

Daemon::~Daemon() = default;

Status Daemon::Start() {
  log_->Info("daemon.starting", "kvtierd {}, pid {}", Version(), ::getpid());
  // First the lock: another daemon's directory and sockets must not be touched.
  KVT_ASSIGN_OR_RETURN(disk_, DiskTier::Open(config_, clock_, loop_, log_));
  KVT_RETURN_IF_ERROR(OpenArena());
  KVT_RETURN_IF_ERROR(OpenDevice());
  executor_ = std::make_unique<ThreadExecutor>(
      "kvt-work", static_cast<int>(config_.host.checksum_threads), loop_);
  MakeCache();
  KVT_RETURN_IF_ERROR(Listen());
  TickForever();
  log_->Info("server.ready", "READY: serving on {}, admin on {}, after {} ms",
             config_.server.socket, config_.server.admin_socket,
             clock_.MonotonicMs() - started_ms_);
  return {};
}

Status Daemon::OpenArena() {
  KVT_ASSIGN_OR_RETURN(
      arena_, MappedArena::Create({.bytes = config_.host.bytes,
                                   .chunk_bytes = config_.cache.chunk_bytes,
                                   .touch_threads = static_cast<int>(config_.host.touch_threads),
                                   .log =
                                       [log = log_](const std::string& note) {
                                         log->Warning("host.degraded", "{}", note);
                                       }},
                                  loop_));
  log_->Info("host.open", "{} of host memory, being touched by {} thread(s)",
             FormatByteSize(arena_->capacity_bytes()), config_.host.touch_threads);
  return {};
}

Status Daemon::OpenDevice() {
  if (config_.pool.device == DeviceChoice::kCuda) {
    return MakeError(ErrorCode::kUnsupported, "no_cuda",
                     "pool.device is \"cuda\", which is not in this build; \"host\" is");
  }
  device_ = std::make_unique<HostDevice>(loop_, static_cast<int>(config_.pool.copy_threads));
  log_->Info("device.chosen", "{}: {}, for pools of {}{}", device_->info().kind,
             device_->info().name, FormatByteSize(config_.cache.pool_bytes),
             config_.pool.device == DeviceChoice::kAuto
                 ? " (pool.device is \"auto\": this build has no other)"
                 : "");
  return {};
}

void Daemon::MakeCache() {
  CacheEnvironment environment{.clock = &clock_,
                               .loop = loop_,
                               .executor = executor_.get(),
                               .device = device_.get(),
                               .arena = arena_.get()};
  IndexSnapshot snapshot = disk_->Join(&environment);
  cache_ = std::make_unique<Cache>(config_.cache, std::move(environment), std::move(snapshot));
}

Status Daemon::Listen() {
  server_ = std::make_unique<Server>(ServerEnvironment{.loop = loop_,
                                                       .cache = cache_.get(),
                                                       .log = log_,
                                                       .peers = peers_,
                                                       .config = &config_,
                                                       .device_kind = wire::DeviceKind::kHost,
                                                       .daemon_generation = RandomGeneration()},
                                     TenantMap(config_.tenants, ::geteuid()));
  shutdown_ = std::make_unique<Shutdown>(ShutdownEnvironment{
      .loop = loop_,
      .clock = &clock_,
      .cache = cache_.get(),
      .server = server_.get(),
      .log = log_,
      .drain_deadline_ms = config_.drain.deadline_ms,
  });
  admin_operations_ = std::make_unique<AdminOperations>(AdminEnvironment{
      .loop = loop_,
      .clock = &clock_,
      .cache = cache_.get(),
      .models = &server_->models(),
      .status = [this] { return StatusJson(Source()); },
      .stats = [this] { return StatsJson(Source()); },
      .config = [this] { return ConfigJson(config_); },
      .default_config = [] { return ConfigJson(Config{}); },
  });
  admin_server_ = std::make_unique<AdminServer>(loop_, log_, peers_, admin_operations_.get());
  KVT_RETURN_IF_ERROR(MakeParentDirectory(config_.server.admin_socket));
  KVT_RETURN_IF_ERROR(MakeParentDirectory(config_.server.socket));
  KVT_RETURN_IF_ERROR(admin_server_->Listen(config_.server.admin_socket));
  return server_->Listen();
}

void Daemon::TickForever() {
  tick_.Start(kTickMs, [this] {
    cache_->Tick();
    TickForever();
  });
}

StatusSource Daemon::Source() const {
  return {.config = &config_,
          .cache = cache_.get(),
          .device = device_.get(),
          .server = server_.get(),
          .disk = &disk_->facts(),
          .uptime_ms = clock_.MonotonicMs() - started_ms_,
          .draining = shutdown_->begun()};
}

void Daemon::BeginShutdown(std::function<void()> finished) {
  shutdown_->Begin(std::move(finished));
}

bool IsConfigurationError(const Error& error) {
  // System calls that will fail again until an operator does something.
  static constexpr std::array<std::string_view, 9> kLasting = {
      "EACCES", "EPERM", "EROFS", "ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "EINVAL"};
  switch (error.code) {
    case ErrorCode::kInternal:
      return false;
    case ErrorCode::kIoError:
      return std::ranges::find(kLasting, error.reason) != kLasting.end();
    default:
      return true;
  }
}

}  // namespace kvtier
