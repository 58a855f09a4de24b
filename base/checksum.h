// SPDX-License-Identifier: Apache-2.0
// xxh3 checksums of payloads and headers (https://xxhash.com, dispatched to the widest vectors the
// machine has). They catch accidents of disks and memory, not an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"

namespace kvtier {

// Canonical (big-endian) xxh3-128. Any thread.
[[nodiscard]] PayloadChecksum ChecksumPayload(std::span<const std::byte> payload);

// xxh3-64. Any thread.
[[nodiscard]] uint64_t ChecksumHeader(std::span<const std::byte> header);

}  // namespace kvtier
