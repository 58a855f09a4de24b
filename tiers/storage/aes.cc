// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/aes.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "base/c_pointer.h"

namespace kvtier {
namespace {

using CipherHandle = CPointer<EVP_CIPHER, EVP_CIPHER_free>;
// Freeing it wipes the key's schedule.
using ContextHandle = CPointer<EVP_CIPHER_CTX, EVP_CIPHER_CTX_free>;

// OpenSSL counts in int.
constexpr size_t kMostBytesAtOnce = size_t{1} << 30;

const unsigned char* In(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

unsigned char* Out(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

bool Update(EVP_CIPHER_CTX* context, std::span<const std::byte> in, std::span<std::byte> out) {
  while (!in.empty()) {
    const size_t now = std::min(in.size(), kMostBytesAtOnce);
    int written = 0;
    if (EVP_CipherUpdate(context, Out(out), &written, In(in), static_cast<int>(now)) != 1 ||
        static_cast<size_t>(written) != now) {
      return false;
    }
    in = in.subspan(now);
    out = out.subspan(now);
  }
  return true;
}

}  // namespace

void WipeBytes(std::span<std::byte> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

struct AesAlgorithms::Ciphers {
  CipherHandle gcm;
  CipherHandle xts;
};

// A context with the key in it; messages bring their nonces.
struct AesAlgorithms::Gcm::Context {
  ContextHandle handle;
  bool ready = false;

  [[nodiscard]] bool Begin(const GcmNonce& nonce, std::span<const std::byte> associated) const {
    int written = 0;
    return ready &&
           EVP_CipherInit_ex2(handle.get(), nullptr, nullptr, In(nonce), -1, nullptr) == 1 &&
           (associated.empty() || EVP_CipherUpdate(handle.get(), nullptr, &written, In(associated),
                                                   static_cast<int>(associated.size())) == 1);
  }
  [[nodiscard]] bool End() const {
    std::array<unsigned char, 16> unused;
    int written = 0;
    return EVP_CipherFinal_ex(handle.get(), unused.data(), &written) == 1;
  }
};

AesAlgorithms::Gcm::Gcm(std::unique_ptr<Context> context) : context_(std::move(context)) {}
AesAlgorithms::Gcm::~Gcm() = default;

bool AesAlgorithms::Gcm::Encrypt(const GcmNonce& nonce, std::span<const std::byte> associated,
                                 std::span<const std::byte> in, std::span<std::byte> out,
                                 GcmTag* tag) {
  return context_->Begin(nonce, associated) && Update(context_->handle.get(), in, out) &&
         context_->End() &&
         EVP_CIPHER_CTX_ctrl(context_->handle.get(), EVP_CTRL_AEAD_GET_TAG,
                             static_cast<int>(tag->size()), tag->data()) == 1;
}

bool AesAlgorithms::Gcm::Decrypt(const GcmNonce& nonce, std::span<const std::byte> associated,
                                 std::span<const std::byte> in, std::span<std::byte> out,
                                 const GcmTag& tag) {
  GcmTag expected = tag;  // OpenSSL takes it without const
  return context_->Begin(nonce, associated) && Update(context_->handle.get(), in, out) &&
         EVP_CIPHER_CTX_ctrl(context_->handle.get(), EVP_CTRL_AEAD_SET_TAG,
                             static_cast<int>(expected.size()), expected.data()) == 1 &&
         context_->End();
}

Result<AesAlgorithms> AesAlgorithms::Fetch() {
  auto ciphers = std::make_shared<Ciphers>();
  ciphers->gcm.reset(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr));
  ciphers->xts.reset(EVP_CIPHER_fetch(nullptr, "AES-256-XTS", nullptr));
  if (!ciphers->gcm || !ciphers->xts) {
    return MakeError(ErrorCode::kUnsupported, "no_aes",
                     "this OpenSSL has no AES-256-GCM or no AES-256-XTS");
  }
  return AesAlgorithms(std::move(ciphers));
}

AesAlgorithms::Gcm AesAlgorithms::WithKey(Direction direction,
                                          std::span<const std::byte, kGcmKeyBytes> key) const {
  auto context = std::make_unique<Gcm::Context>();
  context->handle.reset(EVP_CIPHER_CTX_new());
  const int encrypt = direction == Direction::kEncrypt ? 1 : 0;
  context->ready =
      context->handle != nullptr && EVP_CipherInit_ex2(context->handle.get(), ciphers_->gcm.get(),
                                                       In(key), nullptr, encrypt, nullptr) == 1;
  return Gcm(std::move(context));
}

bool AesAlgorithms::Xts(Direction direction, std::span<const std::byte, kXtsKeyBytes> key,
                        std::span<const std::byte, 16> tweak, std::span<const std::byte> in,
                        std::span<std::byte> out) const {
  const ContextHandle context(EVP_CIPHER_CTX_new());
  const int encrypt = direction == Direction::kEncrypt ? 1 : 0;
  return context != nullptr &&
         EVP_CipherInit_ex2(context.get(), ciphers_->xts.get(), In(key), In(tweak), encrypt,
                            nullptr) == 1 &&
         Update(context.get(), in, out);
}

}  // namespace kvtier
