// SPDX-License-Identifier: Apache-2.0
#include "tiers/cold/encrypted_store.h"

#include <array>
#include <optional>
#include <span>
#include <utility>

#include "tiers/cold/cold_object.h"
#include "tiers/storage/slot_cipher.h"

namespace kvtier {
namespace {

constexpr std::array<std::byte, 16> kTweak{};
// Tenants whose keys are kept at hand.
constexpr size_t kMostNameKeys = 1024;

struct NameParts {
  std::string_view tenant;
  size_t hash_at = 0;
  BlockHash hash;
};

// The parts of "kvtier/1/TENANT/MODEL/HASH".
std::optional<NameParts> PartsOf(std::string_view name) {
  if (!name.starts_with(kColdNamePrefix)) return std::nullopt;
  const size_t tenant_end = name.find('/', kColdNamePrefix.size());
  const size_t slash = name.rfind('/');
  if (tenant_end == std::string_view::npos || slash == tenant_end) return std::nullopt;
  const std::optional<BlockHash> hash = BlockHash::FromHex(name.substr(slash + 1));
  if (!hash) return std::nullopt;
  return NameParts{name.substr(kColdNamePrefix.size(), tenant_end - kColdNamePrefix.size()),
                   slash + 1, *hash};
}

Error Failed() { return {ErrorCode::kIoError, "encryption", "OpenSSL failed"}; }

}  // namespace

struct EncryptedStore::Cipher {
  DerivedKeys keys;
  const AesAlgorithms aes;

  Cipher(RootKey root, AesAlgorithms algorithms)
      : keys(std::move(root)), aes(std::move(algorithms)) {}

  [[nodiscard]] Status Encrypt(std::span<const std::byte> in, std::span<std::byte> out) {
    const auto obtain = [this](std::string_view tenant, uint32_t hour) {
      return keys.ForSlot(tenant, hour);
    };
    return EncryptSlot(aes, obtain, in, out);
  }
  // The outcome stands in the header.
  void Decrypt(std::span<std::byte> object) const {
    const auto find = [this](std::string_view tenant, uint32_t hour, uint64_t id) {
      Result<SecretKey> key = keys.Find(tenant, hour, id);
      return key ? std::optional<SecretKey>(*std::move(key)) : std::nullopt;
    };
    (void)DecryptSlot(aes, find, object);
  }
};

EncryptedStore::EncryptedStore(ColdStore* store, Executor* executor, EventQueue* loop, RootKey root,
                               AesAlgorithms aes)
    : store_(*store),
      executor_(*executor),
      loop_(*loop),
      cipher_(std::make_shared<Cipher>(std::move(root), std::move(aes))) {}

template <typename Answer>
void EncryptedStore::Fail(std::function<void(Answer)> done, Error error) {
  loop_.Post(gate_.WhileOpen(
      [done = std::move(done), error = std::move(error)] { done(tl::unexpected<Error>(error)); }));
}

Result<const SecretKey*> EncryptedStore::KeyOf(std::string_view tenant) {
  auto found = name_keys_.find(tenant);
  if (found == name_keys_.end()) {
    KVT_ASSIGN_OR_RETURN(SecretKey key, cipher_->keys.ForHashes(tenant));
    if (name_keys_.size() == kMostNameKeys) name_keys_.clear();
    found = name_keys_.emplace(std::string(tenant), std::move(key)).first;
  }
  return &found->second;
}

Result<std::string> EncryptedStore::Hidden(const std::string& name) {
  const std::optional<NameParts> parts = PartsOf(name);
  if (!parts) return name;
  KVT_ASSIGN_OR_RETURN(const SecretKey* const key, KeyOf(parts->tenant));
  BlockHash hidden;
  const bool encrypted = cipher_->aes.Xts(AesAlgorithms::Direction::kEncrypt, key->xts(), kTweak,
                                          std::as_bytes(std::span(parts->hash.bytes)),
                                          std::as_writable_bytes(std::span(hidden.bytes)));
  if (!encrypted) return tl::unexpected(Failed());
  return name.substr(0, parts->hash_at) + hidden.Hex();
}

Status EncryptedStore::Hide(std::vector<std::string>* names) {
  for (std::string& name : *names) {
    KVT_ASSIGN_OR_RETURN(name, Hidden(name));
  }
  return {};
}

// On the loop, as are the names' making and the search for their blocks: a question must not wait
// behind the executor's work.
void EncryptedStore::Exists(std::vector<std::string> names, ColdAsk ask, int64_t timeout_ms,
                            ExistsDone done) {
  const Status hidden = Hide(&names);
  if (!hidden) return Fail(std::move(done), hidden.error());
  store_.Exists(std::move(names), ask, timeout_ms, std::move(done));
}

void EncryptedStore::Get(std::string name, uint64_t bytes, int64_t timeout_ms, GetDone done) {
  Result<std::string> hidden = Hidden(name);
  if (!hidden) return Fail(std::move(done), hidden.error());
  if (bytes <= kSlotHeaderBytes) {
    return store_.Get(*std::move(hidden), bytes, timeout_ms, std::move(done));
  }
  auto decrypt = [this, done = std::move(done)](Result<ColdBytes> got) {
    if (!got) return done(std::move(got));
    const auto plain = std::make_shared<ColdObject>();
    executor_.Run(
        [plain, cipher = cipher_, encrypted = *std::move(got)] {
          *plain = *encrypted;
          cipher->Decrypt(*plain);
        },
        gate_.WhileOpen([plain, done] { done(ColdBytes(plain)); }));
  };
  store_.Get(*std::move(hidden), bytes, timeout_ms, gate_.WhileOpen(std::move(decrypt)));
}

void EncryptedStore::Put(std::string name, ColdBytes bytes, ColdPut how, int64_t timeout_ms,
                         Done done) {
  Result<std::string> hidden = Hidden(name);
  if (!hidden) return Fail(std::move(done), hidden.error());
  struct Encryption {
    ColdObject bytes;
    Status status;
  };
  const auto encrypted = std::make_shared<Encryption>();
  executor_.Run(
      [encrypted, cipher = cipher_, bytes = std::move(bytes)] {
        encrypted->bytes.resize(bytes->size());
        encrypted->status = cipher->Encrypt(*bytes, encrypted->bytes);
      },
      gate_.WhileOpen(
          [this, encrypted, name = *std::move(hidden), how, timeout_ms, done = std::move(done)] {
            if (!encrypted->status) return done(encrypted->status);
            store_.Put(name, ColdBytes(encrypted, &encrypted->bytes), how, timeout_ms, done);
          }));
}

void EncryptedStore::Delete(std::vector<std::string> names, int64_t timeout_ms, Done done) {
  const Status hidden = Hide(&names);
  if (!hidden) return Fail(std::move(done), hidden.error());
  store_.Delete(std::move(names), timeout_ms, std::move(done));
}

// Tenants' names are not hidden.
void EncryptedStore::DeleteSome(std::string prefix, uint64_t cursor, int64_t timeout_ms,
                                DeletedDone done) {
  store_.DeleteSome(std::move(prefix), cursor, timeout_ms, std::move(done));
}

}  // namespace kvtier
