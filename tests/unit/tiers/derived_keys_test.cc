// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/derived_keys.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

RootKey Root(uint8_t byte) {
  std::array<std::byte, kGcmKeyBytes> bytes{};
  bytes.fill(std::byte{byte});
  return RootKey(bytes);
}

std::vector<std::byte> BytesOf(const SecretKey& key) {
  return {key.xts().begin(), key.xts().end()};
}

std::vector<std::byte> Found(const DerivedKeys& keys, const std::string& tenant, uint32_t hour,
                             uint64_t id) {
  const Result<SecretKey> key = keys.Find(tenant, hour, id);
  EXPECT_TRUE(key);
  return key ? BytesOf(*key) : std::vector<std::byte>();
}

TEST(DerivedKeys, AreTheSameForAllThatHaveTheRootKey) {
  DerivedKeys writer(Root(1));
  const DerivedKeys reader(Root(1));
  const Result<SlotKey> key = writer.ForSlot("acme", 7);
  ASSERT_TRUE(key);
  EXPECT_EQ(BytesOf(key->key), Found(reader, "acme", 7, key->id));
  EXPECT_EQ(BytesOf(writer.ForHashes("acme").value()), BytesOf(reader.ForHashes("acme").value()));
}

TEST(DerivedKeys, DifferByRootKeyTenantHourIdAndPurpose) {
  const DerivedKeys keys(Root(1));
  const DerivedKeys others(Root(2));
  const std::set<std::vector<std::byte>> made = {
      Found(keys, "acme", 0, 0),
      Found(others, "acme", 0, 0),
      Found(keys, "acmf", 0, 0),
      Found(keys, "", 0, 0),
      Found(keys, "acme", 1, 0),
      Found(keys, "acme", 0, 1),
      BytesOf(keys.ForHashes("acme").value()),
      BytesOf(others.ForHashes("acme").value()),
  };
  EXPECT_EQ(made.size(), 8u);
  for (const std::vector<std::byte>& key : made) {
    const auto half = key.begin() + kGcmKeyBytes;
    EXPECT_FALSE(std::equal(key.begin(), half, half));
  }
}

// The bytes are those of every host and of every later version: objects in a store stay readable.
TEST(DerivedKeys, DoNotChangeBetweenVersions) {
  const std::vector<std::byte> key = Found(DerivedKeys(Root(1)), "acme", 7, 9);
  std::string hex;
  for (const std::byte byte : key) {
    hex += "0123456789abcdef"[std::to_integer<int>(byte >> 4)];
    hex += "0123456789abcdef"[std::to_integer<int>(byte & std::byte{15})];
  }
  EXPECT_EQ(hex,
            "18f47c9eb10da3417e335943ac109ef0b883ef35cdb47955d7532fd90ee3a57c"
            "6717e1df84b79dbb7926c9ee1c2ddc2cfd5e763629f7afcd7c188711dfaca581");
}

TEST(DerivedKeys, GiveNoNonceTwice) {
  DerivedKeys keys(Root(1));
  std::set<std::pair<uint64_t, GcmNonce>> given;
  for (uint32_t i = 0; i < 1000; ++i) {
    const Result<SlotKey> key = keys.ForSlot(i % 2 == 0 ? "acme" : "other", i / 100);
    ASSERT_TRUE(key);
    EXPECT_TRUE(given.emplace(key->id, key->nonce).second);
    EXPECT_TRUE(given.emplace(key->id, NonceAfter(key->nonce)).second);
  }
}

TEST(DerivedKeys, WritersHaveKeysOfTheirOwn) {
  DerivedKeys one(Root(1));
  DerivedKeys other(Root(1));
  EXPECT_NE(one.ForSlot("acme", 7)->id, other.ForSlot("acme", 7)->id);
}

}  // namespace
}  // namespace kvtier
