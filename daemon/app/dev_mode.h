// SPDX-License-Identifier: Apache-2.0
// `kvtierd --dev`: a daemon for one user, without root and without a configuration file.
//
// Its settings are chosen from the machine once, before the daemon starts, and written as a
// configuration: every value can be overridden by --set and is shown by --check-config. Nothing
// here has state; GatherDevFacts is to be called before the event loop runs, since it asks the file
// system and the GPU's driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/machine.h"
#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {

// The facts on which the choice depends.
struct DevFacts {
  MachineMemory memory;
  std::string socket_directory;
  std::string disk_directory;
  // Free bytes there, those of the disk tier's own files included: the choice must not shrink from
  // start to start.
  uint64_t disk_free_bytes = 0;
  // Host memory that an earlier daemon left with a keeper, and the cap of the pools in host memory
  // that it left; 0: none. They are taken as they are, since those of another size would not be
  // adopted, and are not part of the available memory.
  uint64_t kept_host_bytes = 0;
  uint64_t kept_pool_bytes = 0;
  std::string why_no_disk;  // empty: the directory can be used
  int gpus = 0;
  std::string why_no_gpu;
};

// Looks, and makes the two directories for this user alone: the one for sockets is
// UserSocketDirectory(), the other is UserDiskDirectory(). The disk tier is left out if its
// directory cannot be made, belongs to another user or can be written by one. The keeper beside the
// socket that `overrides` leave or name is asked for its memory, and keeps it for
// `restart.keep_for` from then on; null: none is asked. Errors: of MakeUserSocketDirectory.
[[nodiscard]] Result<DevFacts> GatherDevFacts(const std::vector<std::string>* overrides);

// The configuration for them, with `overrides` as for ParseConfig. Any thread. Errors: of
// ParseConfig; "config_disk_directory" if the overrides ask for a disk tier in the directory that
// `why_no_disk` rules out.
[[nodiscard]] Result<Config> DevConfig(const DevFacts& facts,
                                       const std::vector<std::string>& overrides);

// The text for a person once the daemon serves: sizes, places and the next command. At most 24
// lines of 100 columns.
[[nodiscard]] std::string DevScreen(const DevFacts& facts, const Config& config);

}  // namespace kvtier
