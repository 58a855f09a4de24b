// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/derived_keys.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cstring>
#include <span>
#include <vector>

namespace kvtier {
namespace {

constexpr std::string_view kLabel = "kvtier slot keys 1";
constexpr uint32_t kMostNonces = UINT32_MAX - 1;
constexpr size_t kDigestBytes = 32;
static_assert(kXtsKeyBytes == 2 * kDigestBytes);

[[nodiscard]] bool FillRandom(std::span<std::byte> bytes) {
  return ::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
}

template <typename Value>
void Append(const Value& value, std::vector<std::byte>* message) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  message->insert(message->end(), bytes.begin(), bytes.end());
}

}  // namespace

// All but the tenant has a fixed length, so that no two messages are the same bytes.
Result<SecretKey> DerivedKeys::Derive(Purpose purpose, std::string_view tenant, uint32_t hour,
                                      uint64_t id) const {
  std::vector<std::byte> message;
  for (const char c : kLabel) Append(c, &message);
  const size_t half_at = message.size();
  message.push_back({});  // which half of the key it is
  Append(purpose, &message);
  Append(hour, &message);
  Append(id, &message);
  for (const char c : tenant) Append(c, &message);
  std::array<std::byte, kXtsKeyBytes> key{};
  bool made = true;
  for (size_t i = 0; i < 2; ++i) {
    message[half_at] = static_cast<std::byte>(i + 1);
    made &=
        HMAC(EVP_sha256(), root_.bytes().data(), static_cast<int>(root_.bytes().size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(),
             reinterpret_cast<unsigned char*>(key.data() + i * kDigestBytes), nullptr) != nullptr;
  }
  SecretKey secret(key);
  WipeBytes(key);
  if (!made) return MakeError(ErrorCode::kIoError, "encryption", "OpenSSL failed");
  return secret;
}

Result<SlotKey> DerivedKeys::ForSlot(std::string_view tenant, uint32_t hour) {
  uint64_t id = 0;
  GcmNonce nonce{};
  {
    const std::lock_guard lock(mutex_);
    if (id_ == 0 || nonces_ > kMostNonces - 2) {
      const bool drawn = FillRandom(std::as_writable_bytes(std::span(&id_, 1))) && id_ != 0 &&
                         FillRandom(process_);
      if (!drawn) {
        id_ = 0;
        return MakeError(ErrorCode::kIoError, "random", "getrandom gave no bytes");
      }
      nonces_ = 0;
    }
    id = id_;
    std::memcpy(nonce.data(), process_.data(), process_.size());
    std::memcpy(nonce.data() + process_.size(), &nonces_, sizeof(nonces_));
    nonces_ += 2;
  }
  KVT_ASSIGN_OR_RETURN(SecretKey key, Find(tenant, hour, id));
  return SlotKey{.id = id, .key = std::move(key), .nonce = nonce};
}

Result<SecretKey> DerivedKeys::Find(std::string_view tenant, uint32_t hour, uint64_t id) const {
  return Derive(Purpose::kSlot, tenant, hour, id);
}

Result<SecretKey> DerivedKeys::ForHashes(std::string_view tenant) const {
  return Derive(Purpose::kHashes, tenant, 0, 0);
}

}  // namespace kvtier
