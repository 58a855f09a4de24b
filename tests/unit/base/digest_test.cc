// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kvtier {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

// The examples of FIPS 180-2, appendix B.
TEST(Sha256, AgreesWithTheStandard) {
  EXPECT_EQ(Sha256(BytesOf("abc")).Hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256(BytesOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")).Hex(),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256(BytesOf(std::string(1000000, 'a'))).Hex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, OfNothing) {
  EXPECT_EQ(Sha256({}).Hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, ThreadsDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([t, &wrong] {
      const std::string text(100 * (t + 1), static_cast<char>('a' + t));
      const Digest256 expected = Sha256(BytesOf(text));
      for (int i = 0; i < 1000; ++i) wrong[t] += Sha256(BytesOf(text)) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

// xxHash's published value for empty input and seed 0.
TEST(Checksum, OfNothingIsTheAlgorithmsOwn) {
  EXPECT_EQ(ChecksumPayload({}).Hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ChecksumHeader({}), 0x2d06800538d394c2u);
}

TEST(Checksum, EveryFlippedBitChangesIt) {
  std::vector<std::byte> payload(600, std::byte{0x5a});
  const PayloadChecksum intact = ChecksumPayload(payload);
  const uint64_t intact_header = ChecksumHeader(payload);
  for (size_t bit = 0; bit < 8 * payload.size(); ++bit) {
    payload[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(ChecksumPayload(payload), intact);
    EXPECT_NE(ChecksumHeader(payload), intact_header);
    payload[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  EXPECT_EQ(ChecksumPayload(payload), intact);
}

TEST(Checksum, DoesNotDependOnAlignment) {
  std::vector<std::byte> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31);
  std::vector<std::byte> shifted(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
  EXPECT_EQ(ChecksumPayload(bytes), ChecksumPayload(std::span(shifted).subspan(1)));
}

}  // namespace
}  // namespace kvtier
