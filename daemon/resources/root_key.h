// SPDX-License-Identifier: Apache-2.0
// The root key, which wraps the encryption keys that are stored on disk (disk.root_key).
#pragma once

#include <string>

#include "base/result.h"
#include "tiers/storage/key_file.h"

namespace kvtier {

// 32 bytes. `where` is a path, or without a slash the name of one of systemd's credentials
// (LoadCredentialEncrypted=), which systemd protects. If it is any other file, owner and mode are
// checked: root's or this user's, and closed to all others. Blocks. Errors: kInvalidArgument
// "no_credentials" if systemd gave none, "root_key_size"; kPermissionDenied "root_key_open";
// kIoError by errno's name.
[[nodiscard]] Result<RootKey> LoadRootKey(const std::string& where);

}  // namespace kvtier
