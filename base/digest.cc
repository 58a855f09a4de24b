// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#include <openssl/evp.h>

#include "base/c_pointer.h"
#include "base/result.h"

namespace kvtier {
namespace {

// Fetching by name on every call costs more than hashing a block's tokens does.
const EVP_MD* Algorithm() {
  static const EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return kAlgorithm;
}

}  // namespace

Digest256 Sha256(std::span<const std::byte> data) {
  thread_local const CPointer<EVP_MD_CTX, EVP_MD_CTX_free> context(EVP_MD_CTX_new());
  Digest256 digest;
  unsigned int length = 0;
  KVT_CHECK(context != nullptr && Algorithm() != nullptr);
  KVT_CHECK(EVP_DigestInit_ex2(context.get(), Algorithm(), nullptr) == 1);
  KVT_CHECK(EVP_DigestUpdate(context.get(), data.data(), data.size()) == 1);
  KVT_CHECK(EVP_DigestFinal_ex(context.get(), digest.bytes.data(), &length) == 1);
  KVT_CHECK(length == digest.bytes.size());
  return digest;
}

}  // namespace kvtier
