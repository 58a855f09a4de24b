// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/start_doubts.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/machine.h"
#include "base/units.h"
#include "daemon/config/config_check.h"
#include "daemon/config/endpoints.h"
#include "daemon/net/acceptor.h"
#include "daemon/resources/cold_tier.h"
#include "daemon/resources/device_opening.h"
#include "daemon/resources/root_key.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "tiers/memory/mapped_arena.h"
#include "tiers/storage/disk_set.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

class Asking {
 public:
  explicit Asking(const Config& config) : config_(config) {}

  void Disk();
  void Keys();
  void Cold();
  void Memory(const Gpus& gpus);
  void Sockets();
  void Events() {
    for (std::string& text : UnknownTenantsTold(config_)) doubts_.push_back({std::move(text)});
  }
  [[nodiscard]] std::vector<StartDoubt> Take() { return std::move(doubts_); }

 private:
  void Add(std::string_view key, const Error& error) {
    doubts_.push_back({AnnotateWithKey(config_, key, error).context, IsConfigurationError(error)});
  }
  template <typename Answer>
  void Expect(std::string_view key, const Answer& answer) {
    if (!answer) Add(key, answer.error());
  }
  void Warn(std::string_view key, std::string_view text) {
    doubts_.push_back({fmt::format("{}: {}", PlaceOfKey(config_, key), text)});
  }
  void ExpectAbsolute(std::string_view key, const fs::path& path) {
    if (path.is_absolute()) return;
    Warn(key, fmt::format("{} \"{}\" is looked for where the daemon is started; name it from the "
                          "root on",
                          key, path.native()));
  }

  const Config& config_;
  std::vector<StartDoubt> doubts_;
};

void Asking::Disk() {
  const DiskConfig& disk = config_.disk;
  if (disk.bytes == 0) return;
  const std::string_view key = DirectoryKey(config_);
  const std::vector<fs::path> places = disk.Places();
  const Result<DiskSet> set =
      DiskSet::Open(places, {.slab_bytes = config_.cache.slab_bytes}, DriveUse::kLook);
  Expect(key, set);
  if (set) {
    for (const LeftOutDrive& drive : set->left_out()) {
      Add(key, drive.why);
      doubts_.back().is_final = false;
    }
  }
  for (const fs::path& place : places) {
    ExpectAbsolute(key, place);
    // The whole file system counts: the tier's own files may already take the part that is not
    // free.
    std::error_code none;
    const fs::path there =
        fs::exists(place, none) ? place : (place / "").parent_path().parent_path();
    const fs::space_info space = fs::space(there, none);
    const uint64_t share = disk.bytes / places.size();
    if (none || space.capacity >= share) continue;
    Warn("disk.bytes",
         fmt::format("disk.bytes would take {}, the file system of {} has {}",
                     FormatByteSize(share), there.native(), FormatByteSize(space.capacity)));
  }
}

void Asking::Keys() {
  if (!config_.disk.root_key.empty()) Expect("disk.root_key", LoadRootKeys(config_.disk));
}

void Asking::Cold() {
  Expect("cold.endpoint", CheckColdLibrary(config_.cold));
  Expect("cold.password_file", CheckColdPasswordFile(config_.cold));
}

// Devices are only looked at, and host memory is only mapped, before a client comes.
void Asking::Memory(const Gpus& gpus) {
  EventLoop loop;
  Log quiet({.level = LogLevel::kError});
  const MachineMemory memory = ReadMachineMemory();
  const Result<OpenedDevices> opened =
      OpenDevices(config_, {.gpus = &gpus, .loop = &loop, .log = &quiet, .memory = memory});
  Expect("pool.device", opened);
  const auto arena = MappedArena::Create(
      {.bytes = config_.host.bytes, .slab_bytes = config_.cache.slab_bytes}, &loop);
  Expect("host.bytes", arena);
  if (!opened || !arena || memory.total_bytes == 0) return;
  uint64_t bytes = config_.host.bytes;
  for (const OpenedDevice& device : opened->all) {
    if (device.kind == wire::DeviceKind::kHost) bytes += device.pool_bytes;
  }
  if (bytes <= memory.total_bytes) return;
  Warn("host.bytes",
       fmt::format("host.bytes and pools in host memory would take {}, this machine has {}",
                   FormatByteSize(bytes), FormatByteSize(memory.total_bytes)));
}

void Asking::Sockets() {
  const bool beyond = config_.server.listen_beyond_loopback;
  for (const auto& [key, path] : {std::pair("server.admin_socket", &config_.server.admin_socket),
                                  std::pair("server.socket", &config_.server.socket)}) {
    ExpectAbsolute(key, *path);
    Expect(key, Acceptor::CheckPath(*path, /*makes_directory=*/true));
  }
  if (const auto page = ParseListenAddress(config_.metrics.listen, beyond)) {
    Expect("metrics.listen", Acceptor::CheckPort(*page));
  }
  for (const auto& [key, text] :
       {std::pair("events.endpoint", &config_.events.endpoint),
        std::pair("events.replay_endpoint", &config_.events.replay_endpoint)}) {
    const auto place = ParseEventEndpoint(*text, beyond);
    if (!place) continue;
    Expect(key, place->path.empty() ? Acceptor::CheckPort(place->address)
                                    : Acceptor::CheckPath(place->path, /*makes_directory=*/false));
  }
}

}  // namespace

std::vector<StartDoubt> DoubtsOfStart(const Config& config, const Gpus& gpus) {
  Asking asking(config);
  asking.Disk();
  asking.Keys();
  asking.Cold();
  asking.Memory(gpus);
  asking.Sockets();
  asking.Events();
  return asking.Take();
}

}  // namespace kvtier
