// SPDX-License-Identifier: Apache-2.0
#include "daemon/resources/cold_tier.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace kvtier {
namespace {

// Beside the program, where it is built, or where packages put it; else the dynamic linker looks.
std::string LibraryPath(const ColdConfig& config) {
  if (!config.library.empty()) return config.library;
  const char* const name =
      config.kind == ColdKind::kRados ? "kvtier-cold-rados.so" : "kvtier-cold-resp.so";
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path directory = program.parent_path();
  const std::filesystem::path libraries = directory.parent_path() / "lib";
  for (const auto& path : {directory / name, libraries / name, libraries / "kvtier" / name}) {
    if (!error && std::filesystem::exists(path, error)) return path;
  }
  return name;
}

Result<std::string> ReadPassword(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line) || line.empty()) {
    return MakeError(ErrorCode::kUnavailable, "cold_password", path + " has no password");
  }
  return line;
}

}  // namespace

Result<std::unique_ptr<ColdTier>> ColdTier::Open(const ColdConfig& config, const Clock* clock,
                                                 EventLoop* loop) {
  if (config.kind == ColdKind::kNone) return nullptr;
  KVT_ASSIGN_OR_RETURN(std::string password, ReadPassword(config.password_file));
  KVT_ASSIGN_OR_RETURN(std::unique_ptr<LoadedStore> loaded,
                       LoadedStore::Open({.library = LibraryPath(config),
                                          .endpoint = config.endpoint,
                                          .user = config.user,
                                          .password = std::move(password),
                                          .delete_from_hour = config.delete_from_hour,
                                          .delete_hours = config.delete_hours,
                                          .max_bytes_in_flight = config.max_bytes_in_flight},
                                         loop));
  return std::unique_ptr<ColdTier>(new ColdTier(std::move(loaded), clock, loop));
}

}  // namespace kvtier
