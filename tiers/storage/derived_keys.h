// SPDX-License-Identifier: Apache-2.0
// Keys that every host with one root key can make by itself, of what an encrypted slot's header
// says in the open: tenant, hour and the key's id. So hosts that have the same root key read each
// other's slots, without a key that travels, is stored or has to be agreed upon.
//
// The id is drawn by each process: two writers have one key only if both drew the same 64 bits,
// and the nonces of each begin with 64 bits more. Derivation is HMAC-SHA256 of the root key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/result.h"
#include "tiers/storage/key_file.h"
#include "tiers/storage/key_ring.h"

namespace kvtier {

// Any thread.
class DerivedKeys {
 public:
  explicit DerivedKeys(RootKey root) : root_(std::move(root)) {}

  // To encrypt a slot with, as KeyRing::ForSlot. Errors: kIoError "random" if the system gives no
  // random bytes, "encryption" if OpenSSL fails.
  [[nodiscard]] Result<SlotKey> ForSlot(std::string_view tenant, uint32_t hour);
  // The key that a slot's header names. Errors: kIoError "encryption".
  [[nodiscard]] Result<SecretKey> Find(std::string_view tenant, uint32_t hour, uint64_t id) const;
  // The key of the tenant's hashes in names. Errors: kIoError "encryption".
  [[nodiscard]] Result<SecretKey> ForHashes(std::string_view tenant) const;

 private:
  enum class Purpose : uint8_t { kSlot = 1, kHashes = 2 };
  [[nodiscard]] Result<SecretKey> Derive(Purpose purpose, std::string_view tenant, uint32_t hour,
                                         uint64_t id) const;

  const RootKey root_;
  std::mutex mutex_;  // guards what follows
  uint64_t id_ = 0;   // 0: not drawn
  std::array<std::byte, 8> process_{};
  uint32_t nonces_ = 0;  // taken under this id
};

}  // namespace kvtier
