// SPDX-License-Identifier: Apache-2.0
// The root key, which wraps the encryption keys that are stored on disk (disk.root_key).
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "daemon/config/config.h"
#include "tiers/storage/key_file.h"

namespace kvtier {

// 32 bytes. `where` is a path, or without a slash the name of one of systemd's credentials
// (LoadCredentialEncrypted=), which systemd protects. If it is any other file, owner and mode are
// checked: root's or this user's, and closed to all others. Blocks. Errors: kNotFound
// "no_credentials" if systemd gave none; kInvalidArgument "root_key_size"; kPermissionDenied
// "root_key_open"; kIoError by errno's name.
[[nodiscard]] Result<RootKey> LoadRootKey(const std::string& where);

struct RootKeys {
  RootKey root;
  std::optional<RootKey> previous;
};
// Loads the keys that `disk` names. Blocks. Errors: as LoadRootKey, for the previous one with the
// reason "previous_root_key". REQUIRES: it names one.
[[nodiscard]] Result<RootKeys> LoadRootKeys(const DiskConfig& disk);

}  // namespace kvtier
