// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: the file of encryption keys.
//
// The first input byte gives the rest's meaning: a file as it is; one whose checksum is made right
// first, as the fuzzer would not find one; or keys, which are wrapped and unwrapped. Checked
// besides memory safety: only keys that the root key wrapped are accepted, and all that it wrapped
// come back, less keys that cannot be.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/header_page.h"
#include "tiers/storage/key_file.h"

namespace kvtier {
namespace {

using Bytes = std::span<const std::byte>;

const AesAlgorithms& Aes() {
  static const AesAlgorithms aes = AesAlgorithms::Fetch().value();
  return aes;
}

RootKey Root() {
  std::array<std::byte, kGcmKeyBytes> bytes;
  bytes.fill(std::byte{1});
  return RootKey(bytes);
}

void CheckHostileFile(Bytes bytes, bool right_checksum) {
  std::vector<std::byte> file(bytes.begin(), bytes.end());
  if (right_checksum && file.size() >= sizeof(HeaderPagePrefix)) {
    const auto field =
        std::span(file).subspan(offsetof(HeaderPagePrefix, checksum), sizeof(uint64_t));
    std::ranges::fill(field, std::byte{0});
    const uint64_t checksum = ChecksumHeader(file);
    std::memcpy(field.data(), &checksum, sizeof(checksum));
  }
  const auto keys = DecodeKeyFile(Aes(), Root(), file);
  KVT_CHECK(!keys.has_value());
  KVT_CHECK(keys.error().code == ErrorCode::kCorrupt || keys.error().reason == "wrong_root_key");
}

void CheckKeys(Bytes bytes) {
  constexpr size_t kKeyBytes = 108;
  std::vector<StoredKey> keys(std::min<size_t>(bytes.size() / kKeyBytes, kMaxStoredKeys));
  bool all_hold = true;
  for (StoredKey& key : keys) {
    std::memcpy(&key.id, bytes.data(), 8);
    std::memcpy(&key.tenant, bytes.data() + 8, 32);
    std::memcpy(&key.hour, bytes.data() + 40, 4);
    std::memcpy(key.key.data(), bytes.data() + 44, 64);
    all_hold &= key.id != 0;
    bytes = bytes.subspan(kKeyBytes);
  }
  const uint64_t order = bytes.size();
  const auto file = EncodeKeyFile(Aes(), Root(), {order, keys});
  KVT_CHECK(file.has_value());
  const auto again = DecodeKeyFile(Aes(), Root(), *file);
  KVT_CHECK(again.has_value() == all_hold);
  if (!all_hold) return;
  KVT_CHECK(again->version == order);
  KVT_CHECK(std::ranges::equal(again->keys, keys, [](const StoredKey& a, const StoredKey& b) {
    return a.id == b.id && a.tenant == b.tenant && a.hour == b.hour && a.key == b.key;
  }));
}

}  // namespace
}  // namespace kvtier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtier;
  if (size == 0) return 0;
  const Bytes rest = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 3) {
    case 0:
      CheckHostileFile(rest, false);
      break;
    case 1:
      CheckHostileFile(rest, true);
      break;
    default:
      CheckKeys(rest);
  }
  return 0;
}
