// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/start_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "daemon/config/config_check.h"

namespace kvtier {
namespace {

struct Remedy {
  std::string_view reason;
  std::string_view key;  // empty: the caller's
  std::string_view advice;
  // The same start will fail again until an operator does something.
  bool lasting = true;
};

constexpr std::array kRemedies = {
    Remedy{"directory_owner", "",
           "give the directory to the daemon's user (chown -R), or name another"},
    Remedy{"file_owner", "",
           "give the file to the daemon's user (chown), or name another directory"},
    Remedy{
        "directory_locked", "",
        "stop that process, or give this daemon a directory of its own; a lock left by a process "
        "that is gone holds nobody up"},
    Remedy{"disk_full", "disk.bytes",
           "free space there, or lower disk.bytes or disk.free_floor_bytes"},
    Remedy{"slab_bytes_changed", "cache.slab_bytes", ""},
    Remedy{"files_changed", "disk.files", ""},
    Remedy{"io_uring_refused", "disk.engine",
           "set it to \"auto\" or \"pread\", or allow io_uring (sysctl kernel.io_uring_disabled)"},
    Remedy{"arena_too_small", "host.bytes", "raise host.bytes or lower cache.slab_bytes"},
    Remedy{"arena_exceeds_memory", "host.bytes", "lower it"},
    Remedy{"pool_exceeds_memory", "pool.bytes", "lower it"},
    Remedy{"pinned", "cache.pin_fraction", "unpin blocks (kvtierctl unpin) or raise it"},
    Remedy{"no_cuda", "pool.device", "set it to \"host\" or \"auto\""},
    Remedy{"no_such_device", "pool.device", "name a GPU that is there, \"host\" or \"auto\""},
    Remedy{"cuda_driver_too_old", "pool.device", "update the driver, or set it to \"host\""},
    Remedy{"pool_exceeds_vram", "pool.bytes", "lower it"},
    Remedy{"pool_below_granule", "pool.bytes", "raise it to one piece at least"},
    Remedy{"vram_held", "pool.bytes", "end those processes, lower it, or see pool.when_vram_held",
           false},
    Remedy{"socket_in_use", "", "stop that process, or name another path"},
    Remedy{"socket_path_taken", "", "remove what is there, or name another path"},
    Remedy{"socket_path_too_long", "", "name one of at most 107 bytes"},
    Remedy{"EACCES", "", "give the daemon's user access to it, or name another path"},
    Remedy{"EPERM", "", "give the daemon's user access to it, or name another path"},
    Remedy{"EROFS", "",
           "name a path that can be written; as a service, allow it with ReadWritePaths= in a "
           "drop-in of the unit (systemctl edit kvtierd)"},
    Remedy{"ENOENT", "", "make the directory above it, or name another path"},
    Remedy{"ENOTDIR", "", "name a path whose parents are directories"},
    Remedy{"EISDIR", "", "name a path that is no directory"},
    Remedy{"ELOOP", "", "name a path without circular links"},
    Remedy{"ENAMETOOLONG", "", "name a shorter path"},
    Remedy{"EINVAL", "", ""},
    Remedy{"ENOSPC", "", "free space there", false},
    Remedy{"ENOMEM", "", "lower host.bytes or pool.bytes, or free memory", false},
};

const Remedy* FindRemedy(std::string_view reason) {
  const auto found = std::ranges::find(kRemedies, reason, &Remedy::reason);
  return found == kRemedies.end() ? nullptr : found;
}

}  // namespace

Error BlameKey(const Config& config, std::string_view key, Error error) {
  const Remedy* const remedy = FindRemedy(error.reason);
  if (remedy != nullptr && !remedy->key.empty()) key = remedy->key;
  std::string context = fmt::format("{}: {}: {}", PlaceOfKey(config, key), key, error.context);
  if (remedy != nullptr && !remedy->advice.empty()) {
    context += fmt::format("; {}", remedy->advice);
  }
  error.context = std::move(context);
  return error;
}

bool IsConfigurationError(const Error& error) {
  const Remedy* const remedy = FindRemedy(error.reason);
  switch (error.code) {
    case ErrorCode::kInternal:
      return false;
    case ErrorCode::kIoError:
      return remedy != nullptr && remedy->lasting;
    default:
      return true;
  }
}

}  // namespace kvtier
