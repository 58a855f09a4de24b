// SPDX-License-Identifier: Apache-2.0
// Vectors that others have computed, so that the bytes on disk are AES, as named.
#include "tiers/storage/aes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace kvtier {
namespace {

using Direction = AesAlgorithms::Direction;

std::vector<std::byte> Bytes(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(digit(hex[i]) << 4 | digit(hex[i + 1])));
  }
  return bytes;
}

template <size_t kBytes>
std::array<std::byte, kBytes> Array(std::string_view hex) {
  std::array<std::byte, kBytes> array{};
  std::ranges::copy(Bytes(hex), array.begin());
  return array;
}

struct GcmVector {
  std::string_view key, nonce, associated, plain, cipher, tag;
};

constexpr std::string_view kLongKey =
    "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
constexpr std::string_view kLongPlain =
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
constexpr std::string_view kLongCipher =
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad";

// Test cases 13 to 16 of the algorithm's submission to NIST, those with keys of 256 bits.
const GcmVector kGcmVectors[] = {
    {"0000000000000000000000000000000000000000000000000000000000000000", "000000000000000000000000",
     "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"},
    {"0000000000000000000000000000000000000000000000000000000000000000", "000000000000000000000000",
     "", "00000000000000000000000000000000", "cea7403d4d606b6e074ec5d3baf39d18",
     "d0d1c8a799996bf0265b98b5d48ab919"},
    {kLongKey, "cafebabefacedbaddecaf888", "", kLongPlain, kLongCipher,
     "b094dac5d93471bdec1a502270e3cc6c"},
    {kLongKey, "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2",
     kLongPlain.substr(0, 120), kLongCipher.substr(0, 120), "76fc6ece0f4e1768cddf8853bb2d551b"},
};

TEST(AesTest, GcmGivesTheVectorsOfNist) {
  const auto aes = AesAlgorithms::Fetch();
  ASSERT_TRUE(aes.has_value());
  for (const GcmVector& vector : kGcmVectors) {
    const auto key = Array<kGcmKeyBytes>(vector.key);
    const auto nonce = Array<12>(vector.nonce);
    const std::vector<std::byte> plain = Bytes(vector.plain);
    std::vector<std::byte> out(plain.size());
    GcmTag tag{};
    auto encryptor = aes->WithKey(Direction::kEncrypt, key);
    ASSERT_TRUE(encryptor.Encrypt(nonce, Bytes(vector.associated), plain, out, &tag));
    EXPECT_EQ(out, Bytes(vector.cipher));
    EXPECT_EQ(tag, Array<16>(vector.tag));
    auto decryptor = aes->WithKey(Direction::kDecrypt, key);
    ASSERT_TRUE(decryptor.Decrypt(nonce, Bytes(vector.associated), out, out, tag));
    EXPECT_EQ(out, plain);
  }
}

TEST(AesTest, OneKeyServesSeveralMessages) {
  const auto aes = AesAlgorithms::Fetch();
  ASSERT_TRUE(aes.has_value());
  const GcmVector& vector = kGcmVectors[3];
  auto encryptor = aes->WithKey(Direction::kEncrypt, Array<kGcmKeyBytes>(vector.key));
  for (int i = 0; i < 3; ++i) {
    std::vector<std::byte> out(Bytes(vector.plain).size());
    GcmTag tag{};
    ASSERT_TRUE(encryptor.Encrypt(Array<12>(vector.nonce), Bytes(vector.associated),
                                  Bytes(vector.plain), out, &tag));
    EXPECT_EQ(tag, Array<16>(vector.tag));
  }
}

TEST(AesTest, GcmRefusesEveryFlippedBitOfTheTag) {
  const auto aes = AesAlgorithms::Fetch();
  ASSERT_TRUE(aes.has_value());
  const GcmVector& vector = kGcmVectors[3];
  auto decryptor = aes->WithKey(Direction::kDecrypt, Array<kGcmKeyBytes>(vector.key));
  for (size_t bit = 0; bit < 128; ++bit) {
    GcmTag tag = Array<16>(vector.tag);
    tag[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    std::vector<std::byte> bytes = Bytes(vector.cipher);
    EXPECT_FALSE(
        decryptor.Decrypt(Array<12>(vector.nonce), Bytes(vector.associated), bytes, bytes, tag));
  }
}

// IEEE 1619, test vector 10, its first two blocks.
TEST(AesTest, XtsGivesTheVectorOfTheStandard) {
  const auto aes = AesAlgorithms::Fetch();
  ASSERT_TRUE(aes.has_value());
  const auto key = Array<kXtsKeyBytes>(
      "2718281828459045235360287471352662497757247093699959574966967627"
      "3141592653589793238462643383279502884197169399375105820974944592");
  const auto tweak = Array<16>("ff000000000000000000000000000000");
  const std::vector<std::byte> plain =
      Bytes("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
  std::vector<std::byte> out(plain.size());
  ASSERT_TRUE(aes->Xts(Direction::kEncrypt, key, tweak, plain, out));
  EXPECT_EQ(out, Bytes("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b"));
  std::vector<std::byte> back(plain.size());
  ASSERT_TRUE(aes->Xts(Direction::kDecrypt, key, tweak, out, back));
  EXPECT_EQ(back, plain);
}

}  // namespace
}  // namespace kvtier
