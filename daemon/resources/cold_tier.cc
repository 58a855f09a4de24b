// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/cold_tier.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "base/units.h"
#include "daemon/config/endpoints.h"
#include "daemon/resources/root_key.h"

namespace kvtier {
namespace {

// Looks beside the program, where it is built, and where packages put it; otherwise the dynamic
// linker searches its own directories.
std::string LibraryPath(const std::string& name) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path directory = program.parent_path();
  const std::filesystem::path libraries = directory.parent_path() / "lib";
  for (const auto& path : {directory / name, libraries / name, libraries / "kvtier" / name}) {
    if (!error && std::filesystem::exists(path, error)) return path;
  }
  return name;
}

// Loads, writes and a verification are under way together: the loader begins to read while less
// than half as many bytes are under way as may be from disk, the writer while less than half of
// kMaxWriteBytes is, and the block that each begins then may be as large as a slab.
uint64_t BytesInFlight(const CacheOptions& options) {
  constexpr uint64_t kMaxWriteBytes = 32 * kMiB;
  return options.max_disk_read_bytes / 2 + kMaxWriteBytes + 3 * options.slab_bytes;
}

}  // namespace

Result<std::string> ReadColdPassword(const ColdConfig& cold) {
  if (cold.endpoint.empty() || cold.password_file.empty()) return std::string();
  KVT_ASSIGN_OR_RETURN(const ColdEndpoint endpoint, ParseColdEndpoint(cold.endpoint));
  if (!endpoint.takes_password) return std::string();
  std::ifstream file(cold.password_file);
  std::string line;
  if (!file || !std::getline(file, line) || line.empty()) {
    return MakeError(ErrorCode::kUnavailable, "cold_password",
                     cold.password_file + " has no password");
  }
  return line;
}

Status CheckColdPasswordFile(const ColdConfig& cold) {
  if (cold.endpoint.empty() || cold.password_file.empty()) return {};
  if (!std::ifstream(cold.password_file)) {
    return MakeError(ErrorCode::kUnavailable, "cold_password",
                     cold.password_file + " cannot be read");
  }
  const Result<std::string> password = ReadColdPassword(cold);
  return password ? Status() : tl::unexpected(password.error());
}

Status CheckColdLibrary(const ColdConfig& cold) {
  if (cold.endpoint.empty()) return {};
  KVT_ASSIGN_OR_RETURN(const ColdEndpoint endpoint, ParseColdEndpoint(cold.endpoint));
  return LoadedStore::CheckLibrary(LibraryPath(endpoint.library));
}

// Not with the keys of the disk tier, which are this host's alone, and end with it.
Result<std::unique_ptr<ColdTier>> ColdTier::Open(const Config& config, const Clock* clock,
                                                 EventLoop* loop, Executor* executor, Log* log) {
  const ColdConfig& cold = config.cold;
  if (cold.endpoint.empty()) return nullptr;
  KVT_ASSIGN_OR_RETURN(ColdEndpoint endpoint, ParseColdEndpoint(cold.endpoint));
  KVT_ASSIGN_OR_RETURN(std::string password, ReadColdPassword(cold));
  const auto on_unswept = [log, endpoint = cold.endpoint](const std::string& why) {
    log->Warning("cold.unswept", "{}: {}", endpoint, why);
  };
  KVT_ASSIGN_OR_RETURN(
      std::unique_ptr<LoadedStore> loaded,
      LoadedStore::Open(
          {.library = LibraryPath(endpoint.library),
           .endpoint = std::move(endpoint.address),
           .user = std::move(endpoint.user),
           .password = std::move(password),
           .password_file = cold.password_file,
           .max_bytes = endpoint.max_bytes,
           .max_bytes_in_flight = [&cache = config.cache] { return BytesInFlight(cache); },
           .on_unswept = on_unswept},
          loop));
  const auto on_change = [log, endpoint = cold.endpoint](const Status& away) {
    if (away) return log->Info("cold.back", "{} answers again", endpoint);
    log->Warning("cold.away", "{} is asked no more until it answers a probe: {}", endpoint,
                 away.error().ToString());
  };
  std::unique_ptr<ColdTier> tier(new ColdTier(std::move(loaded), clock, loop, on_change));
  if (config.disk.encryption != DiskEncryption::kNone) {
    KVT_ASSIGN_OR_RETURN(RootKey root, LoadRootKey(config.disk.root_key));
    KVT_ASSIGN_OR_RETURN(AesAlgorithms aes, AesAlgorithms::Fetch());
    tier->encrypted_ = std::make_unique<EncryptedStore>(&tier->guarded_, executor, loop,
                                                        std::move(root), std::move(aes));
  }
  return tier;
}

}  // namespace kvtier
