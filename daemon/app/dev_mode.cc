// SPDX-License-Identifier: Apache-2.0
#include "daemon/app/dev_mode.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/units.h"
#include "base/user_paths.h"
#include "daemon/config/config_loader.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/keeper/keeper_link.h"
#include "daemon/resources/kept_pools.h"
#include "gpu/cuda_device.h"
#include "tiers/memory/host_table.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// Shares of the free resources. The engine, its weights and its own caches come after the daemon
// and need most of the machine; a developer who wants more says so.
constexpr uint64_t kHostShare = 4;   // a quarter of the memory
constexpr uint64_t kPoolShare = 8;   // an eighth of it, if pools are in host memory
constexpr uint64_t kDiskShare = 10;  // a tenth of the disk
constexpr double kVramShare = 0.2;

// Below the minimum the daemon does not start; above the maximum, touching memory at each start
// would take long. There is one engine for each GPU, as a rule, and one where there is none.
constexpr uint64_t kMinHostBytes = 64 * kMiB, kMaxHostBytesOfEngine = 32 * kGiB;
constexpr uint64_t kMinPoolBytes = 16 * kMiB, kMaxPoolBytes = 16 * kGiB;
constexpr uint64_t kMinDiskBytes = 1 * kGiB, kMaxDiskBytes = 64 * kGiB;
// Where the machine does not tell how much is free.
constexpr uint64_t kUntoldBytes = 1 * kGiB;

uint64_t AvailableBytes(const DevFacts& facts) {
  return facts.memory.available_bytes > 0 ? facts.memory.available_bytes : kUntoldBytes;
}

uint64_t HostBytes(const DevFacts& facts) {
  if (facts.kept_host_bytes > 0) return facts.kept_host_bytes;
  const uint64_t share = AvailableBytes(facts) / kHostShare;
  return std::clamp(share - share % (64 * kMiB), kMinHostBytes,
                    kMaxHostBytesOfEngine * std::max(facts.gpus, 1));
}

uint64_t PoolBytes(const DevFacts& facts) {
  if (facts.kept_pool_bytes > 0) return facts.kept_pool_bytes;
  const uint64_t share = AvailableBytes(facts) / kPoolShare;
  return std::clamp(share - share % kMinPoolBytes, kMinPoolBytes, kMaxPoolBytes);
}

// Whole GiB, so that the size stays the same while the disk fills a little; 0 if there is too
// little.
uint64_t DiskBytes(const DevFacts& facts) {
  if (!facts.why_no_disk.empty()) return 0;
  const uint64_t share = facts.disk_free_bytes / kDiskShare / kGiB * kGiB;
  return share < kMinDiskBytes ? 0 : std::min(share, kMaxDiskBytes);
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string InBytes(uint64_t bytes) { return fmt::format("\"{}B\"", bytes); }

// The bytes that the files in the directory take on disk.
uint64_t AllocatedBytes(const fs::path& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    struct stat facts {};
    if (::lstat(entry.path().c_str(), &facts) == 0 && S_ISREG(facts.st_mode)) {
      bytes += static_cast<uint64_t>(facts.st_blocks) * 512;
    }
  }
  return bytes;
}

void LookAtDisk(DevFacts* facts) {
  facts->disk_directory = UserDiskDirectory();
  if (facts->disk_directory.empty()) {
    facts->why_no_disk = "neither $XDG_CACHE_HOME nor $HOME is set";
    return;
  }
  std::error_code error;
  // The daemon's files hold this user's prompts: umask is not trusted to hide them.
  const mode_t before = ::umask(0077);
  fs::create_directories(facts->disk_directory, error);
  ::umask(before);
  // Another user who owns the directory can read the tier's files or put others in their place.
  if (!error) facts->why_no_disk = WhyNotPrivate(facts->disk_directory);
  if (!error && facts->why_no_disk.empty() && ::access(facts->disk_directory.c_str(), W_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (error) facts->why_no_disk = fmt::format("{}: {}", facts->disk_directory, error.message());
  if (!facts->why_no_disk.empty()) return;
  const fs::space_info space = fs::space(facts->disk_directory, error);
  if (!error) facts->disk_free_bytes = space.available + AllocatedBytes(facts->disk_directory);
}

// The connection ends here: the daemon's own comes later.
void LookAtKeptMemory(const Config& config, DevFacts* facts) {
  Result<std::optional<KeeperLink>> keeper =
      KeeperLink::Find(KeeperPlace::Beside(config.server.socket, ""), config.restart.keep_for_ms);
  if (!keeper || !*keeper) return;
  const Result<std::optional<UniqueFd>> table = (*keeper)->Take(kHostTableName);
  if (table && *table) facts->kept_host_bytes = HostTable::ArenaBytesOf((*table)->get());
  facts->kept_pool_bytes = KeptPools::HostCap(&**keeper);
}

constexpr const char* kAsLeft = "as the last daemon has left it";

// A note on pools that the last daemon has left, which are given back if another size was asked
// for.
std::string KeptPoolNote(uint64_t kept_bytes, uint64_t bytes) {
  if (bytes == kept_bytes) return kAsLeft;
  return fmt::format("begins empty: the last daemon has left {}", FormatByteSize(kept_bytes));
}

std::string PoolNote(const DevFacts& facts, const Config& config) {
  if (facts.gpus == 0) {
    std::string note = "in host memory: " + facts.why_no_gpu;
    if (facts.kept_pool_bytes == 0) return note;
    return note + "; " + KeptPoolNote(facts.kept_pool_bytes, config.cache.pool_bytes);
  }
  return fmt::format("at most, of the free memory of {}; taken when an engine attaches",
                     facts.gpus == 1 ? "the GPU" : fmt::format("each of {} GPUs", facts.gpus));
}

std::string MemoryNote(const DevFacts& facts, const Config& config) {
  if (facts.kept_host_bytes > 0) {
    if (config.host.bytes == facts.kept_host_bytes) return kAsLeft;
    return fmt::format("with what fits of the {} that the last daemon has left",
                       FormatByteSize(facts.kept_host_bytes));
  }
  std::string note = fmt::format("{} of memory were free",  //
                                 FormatByteSize(facts.memory.available_bytes));
  if (!facts.memory.limited_by.empty()) {
    note += fmt::format(" (limited to {} by the control group {})",
                        FormatByteSize(facts.memory.total_bytes), facts.memory.limited_by);
  }
  return note;
}

std::string DiskNote(const DevFacts& facts, const Config& config) {
  if (config.disk.bytes == 0) {
    if (!facts.why_no_disk.empty()) return "off: " + facts.why_no_disk;
    return fmt::format("off ({} were free)", FormatByteSize(facts.disk_free_bytes));
  }
  if (config.disk.directory != facts.disk_directory) return config.disk.directory;
  return fmt::format("{}, {} were free", facts.disk_directory,
                     FormatByteSize(facts.disk_free_bytes));
}

std::string DevConfigToml(const DevFacts& facts) {
  const auto socket = [&facts](std::string_view name) {
    return Quoted(fmt::format("{}/{}", facts.socket_directory, name));
  };
  std::string text = fmt::format("[server]\nsocket = {}\nadmin_socket = {}\n\n",
                                 socket(kSocketName), socket(kAdminSocketName));
  if (facts.gpus > 0) {
    text += fmt::format("[pool]\ndevice = \"all\"\nbytes = \"{:g}%\"\n\n", kVramShare * 100);
  } else {
    text += fmt::format("[pool]\ndevice = \"host\"\nbytes = {}\n\n", InBytes(PoolBytes(facts)));
  }
  text += fmt::format("[host]\nbytes = {}\n\n[disk]\nbytes = {}\n", InBytes(HostBytes(facts)),
                      InBytes(DiskBytes(facts)));
  if (!facts.disk_directory.empty()) {
    text += fmt::format("directory = {}\n", Quoted(facts.disk_directory));
  }
  return text;
}

}  // namespace

Result<DevFacts> GatherDevFacts(const std::vector<std::string>* overrides) {
  DevFacts facts;
  facts.memory = ReadMachineMemory();
  KVT_ASSIGN_OR_RETURN(facts.socket_directory, MakeUserSocketDirectory());
  LookAtDisk(&facts);
  // A driver that does not work is as good as none here: the screen says why.
  const Result<CudaPresence> gpus = FindCudaDevices();
  facts.gpus = gpus ? gpus->devices : 0;
  if (facts.gpus == 0) facts.why_no_gpu = gpus ? gpus->why_none : gpus.error().context;
  if (overrides == nullptr) return facts;
  // Without one there will be no start.
  const Result<Config> config = DevConfig(facts, *overrides);
  if (config) LookAtKeptMemory(*config, &facts);
  return facts;
}

Result<Config> DevConfig(const DevFacts& facts, const std::vector<std::string>& overrides) {
  KVT_ASSIGN_OR_RETURN(Config config, ParseConfig(DevConfigToml(facts), "--dev", overrides));
  if (config.disk.bytes > 0 && !facts.why_no_disk.empty() &&
      config.disk.directory == facts.disk_directory) {
    return MakeError(ErrorCode::kInvalidArgument, "config_disk_directory",
                     fmt::format("--set disk.bytes: {}; mend that, or name another directory with "
                                 "--set disk.directory",
                                 facts.why_no_disk));
  }
  return config;
}

std::string DevScreen(const DevFacts& facts, const Config& config) {
  const std::string pool = config.pool.free_fraction > 0
                               ? fmt::format("{:.0f} %", config.pool.free_fraction * 100)
                               : FormatByteSize(config.cache.pool_bytes);
  const std::string disk = config.disk.bytes == 0 ? "-" : FormatByteSize(config.disk.bytes);
  const char* const named = std::getenv(kSocketVariable);
  // As FindSocket does once the socket is there: a variable that is empty names nothing.
  const bool found =
      config.server.socket == (named != nullptr && *named != '\0'
                                   ? named
                                   : fmt::format("{}/{}", facts.socket_directory, kSocketName));
  return fmt::format(
      R"(
kvtierd for development serves user {} alone.

  pool    {:>10}  {}
  host    {:>10}  {}
  disk    {:>10}  {}
  socket  {}

{}
Other sizes: --set host.bytes=8GiB, --set disk.bytes=0B, and so on; --check-config shows all.
A page for people: --set metrics.listen=127.0.0.1:9400
Ctrl-C ends it; blocks on disk are there again at the next start.
{}

Next, in another terminal:

  kvtierctl status
  python3 -m kvtier.demo
)",
      ::geteuid(), pool, PoolNote(facts, config), FormatByteSize(config.host.bytes),
      MemoryNote(facts, config), disk, DiskNote(facts, config), config.server.socket,
      found ? "Clients of this user find it by themselves: kvtier.connect() needs no arguments."
            : fmt::format("Clients do not find it by themselves: export {}={}", kSocketVariable,
                          config.server.socket),
      config.restart.keep_for_ms > 0
          ? fmt::format("Host memory is, too, for {}; kvtierctl stop --release gives it back.",
                        FormatDuration(config.restart.keep_for_ms))
          : "Host memory is not (restart.keep_for).");
}

}  // namespace kvtier
