// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/resources.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/machine.h"
#include "base/units.h"
#include "daemon/app/disk_retry.h"
#include "daemon/config/config_check.h"
#include "daemon/keeper/store_opening.h"
#include "daemon/runtime/process.h"
#include "daemon/runtime/process_end.h"
#include "gpu/cuda_device.h"
#include "gpu/lent_mapping.h"

namespace kvtier {
namespace {

// How often the heap is looked at for memory to return to the system.
constexpr int64_t kTrimMs = 5000;
// The exit code of any failure: systemd starts the daemon again, and the new process finds the disk
// tier as it was.
constexpr int kExitDeviceLost = 1;

}  // namespace

void EndForLostDevice(Log* log, const std::string& error) {
  // Nothing of the context can be used any more, not even to take it down in order. Blocks on disk
  // survive, and are there for the next process.
  log->Error("device.lost", "the GPU's context is broken, ending: {}", error);
  log->Flush();
  std::_Exit(kExitDeviceLost);
}

Resources::~Resources() {
  if (!ends_in_background_ || descriptors_->entries().empty()) return;
  // Unmapping and unpinning host memory and destroying a GPU's context take seconds. The process
  // ends after this, and its teardown process does all that while the next daemon starts.
  arena_->LeaveMapped();
  for (OpenedDevice& opened : devices_) {
    if (opened.kind == wire::DeviceKind::kCuda) (void)opened.device.release();
  }
}

Status Resources::OpenStores() {
  executor_ = std::make_unique<ThreadExecutor>("kvt-work", static_cast<int>(WorkerThreads()),
                                               env_.loop, ThreadExecutor::Priority::kBackground);
  // A GPU's driver takes a tenth of a second to start, and the disk's lock may have to be waited
  // for.
  std::jthread driver_start;
  if (MayUseCuda()) driver_start = std::jthread([] { (void)FindCudaDevices(); });
  KVT_RETURN_IF_ERROR(OpenDisk());
  OpenDescriptors();
  kept_pools_ = std::make_unique<KeptPools>(descriptors_.get(), env_.log);
  return OpenCold();
}

void Resources::OpenDescriptors() {
  if (descriptors_) return;
  descriptors_ = OpenDescriptorStore({.socket = env_.config->server.socket,
                                      .keep_for_ms = env_.config->restart.keep_for_ms,
                                      .loop = env_.loop,
                                      .log = env_.log});
}

Status Resources::OpenDisk() {
  const auto take_keys = [this] {
    OpenDescriptors();
    return descriptors_->Take(kDiskKeysName);
  };
  Result<std::unique_ptr<DiskTier>> opened =
      AnnotateWithKey(*env_.config, DirectoryKey(*env_.config),
                      DiskTier::Open(*env_.config, *env_.clock, env_.loop, executor_.get(),
                                     env_.log, env_.manager, take_keys));
  if (!opened && !MayServeWithoutDisk(opened.error())) {
    return tl::unexpected(std::move(opened).error());
  }
  if (!opened) {
    // The next daemon needs the keys of the blocks that are there.
    OpenDescriptors();
    without_disk_ = opened.error();
    unused_keys_ = descriptors_->Take(kDiskKeysName);
    opened =
        DiskTier::Unavailable(*env_.config, *env_.clock, opened.error(), env_.log, env_.manager);
  }
  disk_ = *std::move(opened);
  if (without_disk_ || !disk_->left_out().empty()) {
    retry_thread_ = std::make_unique<ThreadExecutor>("kvt-retry", 1, env_.loop);
  }
  if (disk_->keys_descriptor() < 0) return {};
  const Status kept = descriptors_->Keep(kDiskKeysName, disk_->keys_descriptor());
  if (!kept && env_.config->disk.root_key.empty()) {
    env_.log->Warning(
        "disk.keys_not_kept",
        "a restart will lose the blocks on disk, for the encryption keys end with this "
        "process: {}",
        kept.error().ToString());
  }
  return {};
}

Status Resources::OpenCold() {
  KVT_ASSIGN_OR_RETURN(cold_, AnnotateWithKey(*env_.config, "cold.endpoint",
                                              ColdTier::Open(*env_.config, env_.clock, env_.loop,
                                                             executor_.get(), env_.log)));
  return {};
}

Status Resources::OpenDevices() {
  const DeviceEnvironment environment{
      .gpus = &gpus_,
      .loop = env_.loop,
      .executor = executor_.get(),
      .log = env_.log,
      .memory = ReadMachineMemory(),
      .on_fatal = [log = env_.log](const std::string& error) { EndForLostDevice(log, error); },
      .kept_bytes = [this](const DeviceInfo& device) { return kept_pools_->BytesOn(device); }};
  KVT_ASSIGN_OR_RETURN(OpenedDevices opened, kvtier::OpenDevices(*env_.config, environment));
  pinner_ = std::move(opened.pinner);
  devices_ = std::move(opened.all);
  for (const OpenedDevice& device : devices_) {
    const DeviceInfo info = device.device->info();
    wire_devices_.devices.push_back({.kind = device.kind,
                                     .uuid = info.uuid,
                                     .pool_bytes = device.pool_bytes,
                                     .name = info.name.substr(0, wire::kMaxDeviceNameBytes)});
  }
  const Status no_new_pages = CheckNoNewPages();
  if (!no_new_pages && !environment.memory.limited_by.empty()) {
    env_.log->Warning(
        "memory.lent_pages",
        "pages that clients' shared memory lacks count to this daemon's control group "
        "({}) when it writes there: {}",
        environment.memory.limited_by, no_new_pages.error().ToString());
  }
  kept_pools_->SetDevices(&devices_);
  return {};
}

void Resources::WatchForDisk(std::function<void()> on_back) {
  const RetryNote note(env_.config->server.socket + ".disk-retry");
  if (!without_disk_) {
    note.Remove();
    return WatchForDrives();
  }
  if (!DiskMayComeBack(*without_disk_)) return;
  const int64_t pause_ms = note.PauseMs();
  if (pause_ms > RetryNote::kFirstPauseMs) {
    env_.log->Warning("disk.back", "the disk could not be had after all: it is tried again in {} s",
                      pause_ms / 1000);
  }
  disk_retry_ = std::make_unique<DiskRetry>(
      env_.loop, retry_thread_.get(),
      [disk = env_.config->disk, slab_bytes = env_.config->cache.slab_bytes, note]() -> Status {
        KVT_RETURN_IF_ERROR(ProbeDisk(disk, slab_bytes));
        return note.WriteNextPause();
      },
      std::move(on_back), pause_ms);
}

// The others serve: the operator says when they are to be stopped for it.
void Resources::WatchForDrives() {
  DiskConfig missing = env_.config->disk;
  missing.directories.clear();
  for (const LeftOutDrive& drive : disk_->left_out()) {
    if (DiskMayComeBack(drive.why)) missing.directories.push_back(drive.directory.native());
  }
  if (missing.directories.empty()) return;
  disk_retry_ = std::make_unique<DiskRetry>(
      env_.loop, retry_thread_.get(),
      [missing, slab_bytes = env_.config->cache.slab_bytes] {
        return ProbeDisk(missing, slab_bytes);
      },
      [log = env_.log] {
        log->Warning("disk.drive_back",
                     "a directory that the start had to leave out can be had now: restart the "
                     "daemon to use it");
      },
      RetryNote::kFirstPauseMs);
}

Status Resources::OpenArena() {
  const uint32_t threads = WorkerThreads();
  MappedArenaOptions options{
      .bytes = env_.config->host.bytes,
      .slab_bytes = env_.config->cache.slab_bytes,
      .touch_threads = static_cast<int>(threads),
      .pinner = pinner_.get(),
      .numa_node = CommonNumaNode(devices_),
      // Without a holder the memory ends with the process, and anonymous memory is had sooner.
      .keep = descriptors_->keeps(),
      .log = [log =
                  env_.log](const std::string& note) { log->Warning("host.degraded", "{}", note); },
      .on_complete =
          [this](const ArenaTimes& times) {
            env_.log->Info(
                "host.complete",
                "{} of host memory ready after {:.2f} s: {:.2f} s for pages, {:.2f} s for "
                "pinning",
                FormatByteSize(arena_->capacity_bytes()), times.seconds, times.pages_s,
                times.pin_s);
            NoteKeptArena();
          },
      .on_given_back =
          [this](uint64_t bytes) {
            env_.log->Info("host.given_back", "host memory has {} now, {} were given back",
                           FormatByteSize(arena_->capacity_bytes()), FormatByteSize(bytes));
            NoteKeptArena();
          }};
  const bool keep = options.keep;
  if (keep) {
    options.kept_arena = descriptors_->Take(kHostArenaName).value_or(UniqueFd());
    options.kept_table = descriptors_->Take(kHostTableName).value_or(UniqueFd());
  }
  KVT_ASSIGN_OR_RETURN(arena_, MappedArena::Create(std::move(options), env_.loop));
  env_.log->Info("host.open", "{} of host memory, {} thread(s) to touch it and for checksums",
                 FormatByteSize(arena_->capacity_bytes()), threads);
  if (keep) KeepArena();
  // Unclaimed descriptors belonged to a daemon with other settings, or of another version: none
  // will ask for them.
  descriptors_->ReleaseUnclaimed();
  EndInBackground();
  return {};
}

bool Resources::MayUseCuda() const {
  return std::ranges::any_of(env_.config->pool.devices,
                             [](DeviceChoice asked) { return asked != DeviceChoice::kHost; });
}

bool Resources::UsesCuda() const {
  return std::ranges::any_of(
      devices_, [](const OpenedDevice& opened) { return opened.kind == wire::DeviceKind::kCuda; });
}

void Resources::EndInBackground() {
  if (!descriptors_->keeps()) return;
  const Status started = StartTeardownProcess();
  ends_in_background_ = started.has_value();
  if (!started) {
    env_.log->Warning("restart.slow",
                      "the next daemon can start only when all of this one is gone: {}",
                      started.error().ToString());
  }
}

void Resources::KeepArena() {
  if (arena_->adoption() == "adopted") {
    const uint64_t left_bytes = arena_->left_bytes();
    env_.log->Info("host.adopted",
                   "host memory of an earlier daemon is there again, to be verified{}",
                   left_bytes == arena_->capacity_bytes()
                       ? ""
                       : fmt::format(": it had {}, now it has {}", FormatByteSize(left_bytes),
                                     FormatByteSize(arena_->capacity_bytes())));
  } else if (arena_->adoption() != "none") {
    env_.log->Info("host.not_adopted", "host memory begins empty: {}", arena_->adoption());
  }
  // Their files are longer than the memory.
  for (const auto& [name, descriptor, bytes] :
       {std::tuple(kHostArenaName, arena_->arena_descriptor(), arena_->capacity_bytes()),
        std::tuple(kHostTableName, arena_->table_descriptor(), arena_->table()->bytes())}) {
    const Status kept = descriptors_->Keep(name, descriptor, bytes);
    if (kept) continue;
    env_.log->Warning("keeper.none", "{} is not kept over a restart: {}", name,
                      kept.error().ToString());
    return;
  }
}

void Resources::NoteKeptArena() {
  descriptors_->NoteBytes(kHostArenaName, arena_->capacity_bytes());
  if (arena_->table()) descriptors_->NoteBytes(kHostTableName, arena_->table()->bytes());
}

Quarantine::KernelsRemain Resources::MakeKernelsRemain() {
  std::vector<int> ordinals;
  for (const OpenedDevice& opened : devices_) {
    if (opened.kind == wire::DeviceKind::kCuda) ordinals.push_back(opened.device->info().ordinal);
  }
  if (ordinals.empty()) return {};
  struct Found {
    bool remain = false;
    std::set<int> untold;  // GPUs
  };
  return [this, ordinals, warned = std::make_shared<std::set<int>>()](
             int32_t pid, std::function<void(bool)> answer) {
    const auto found = std::make_shared<Found>();
    // Asking the driver takes milliseconds.
    executor_->Run(
        [ordinals, pid, found] {
          for (const int ordinal : ordinals) {
            const std::optional<bool> holds = HoldsVramOf(ordinal, pid);
            found->remain |= holds.value_or(false);
            if (!holds) found->untold.insert(ordinal);
          }
        },
        [found, warned, log = env_.log, answer = std::move(answer)] {
          for (const int ordinal : found->untold) {
            if (!warned->insert(ordinal).second) continue;
            log->Warning("device.degraded",
                         "the driver does not tell who uses cuda:{}: a process that has ended is "
                         "taken to have left no kernels there that write on",
                         ordinal);
          }
          answer(found->remain);
        });
  };
}

void Resources::Tick() {
  disk_->Tick();
  if (env_.clock->MonotonicMs() < trim_at_ms_) return;
  trim_at_ms_ = env_.clock->MonotonicMs() + kTrimMs;
  // On a thread of the executor, because returning hundreds of MiB takes milliseconds.
  executor_->Run([] { ReleaseFreedMemory(); }, nullptr);
}

std::string Resources::WhatStaysKept() const {
  uint64_t bytes = 0;
  for (const DescriptorStore::Entry& entry : descriptors_->entries()) bytes += entry.bytes;
  const DescriptorStore::Holder holder = descriptors_->holder();
  if (bytes == 0 || holder.name == "none") return "nothing stays kept";
  return fmt::format("{} stay in memory, kept by {} until {}", FormatByteSize(bytes), holder.name,
                     holder.until);
}

}  // namespace kvtier
