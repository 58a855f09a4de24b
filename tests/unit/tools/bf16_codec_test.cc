// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/codec/bf16_codec.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace kvtier {
namespace {

using Bytes = std::vector<std::byte>;

class Bf16CodecTest : public testing::TestWithParam<VectorLevel> {
 protected:
  void SetUp() override {
    if (GetParam() > WidestVectorLevel()) GTEST_SKIP() << "this machine has no such vectors";
  }

  [[nodiscard]] Bytes Encode(const Bytes& raw) const {
    Bytes out(MinEncodedBytes(raw.size()) + 2 * raw.size());
    const auto bytes = EncodeBf16(raw, out, GetParam());
    EXPECT_TRUE(bytes.has_value());
    out.resize(bytes.value_or(0));
    return out;
  }
  void ExpectSameAfterwards(const Bytes& raw) const {
    const Bytes encoded = Encode(raw);
    Bytes decoded(raw.size(), std::byte{0x5a});
    EXPECT_TRUE(DecodeBf16(encoded, decoded, {}, GetParam()));
    EXPECT_EQ(decoded, raw);
  }

  std::mt19937 random_{17};
};

Bytes Elements(size_t count, auto&& element) {
  Bytes bytes(2 * count);
  for (size_t i = 0; i < count; ++i) {
    const uint16_t value = element(i);
    std::memcpy(&bytes[2 * i], &value, sizeof(value));
  }
  return bytes;
}

uint16_t Bf16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

TEST_P(Bf16CodecTest, KeepsEveryBitPattern) {
  ExpectSameAfterwards(Elements(65536, [](size_t i) { return static_cast<uint16_t>(i); }));
}

TEST_P(Bf16CodecTest, KeepsBytesThatAreNoNumbersAtAll) {
  for (const size_t groups : {1, 2, 127, 128, 129, 300}) {
    ExpectSameAfterwards(
        Elements(64 * groups, [this](size_t) { return static_cast<uint16_t>(random_()); }));
  }
}

TEST_P(Bf16CodecTest, TakesThreeQuartersOfWhatIsDistributedAsKeysAndValuesAre) {
  std::normal_distribution<float> normal(0, 3);
  const Bytes raw = Elements(size_t{1} << 20, [&](size_t) { return Bf16(normal(random_)); });
  const Bytes encoded = Encode(raw);
  EXPECT_LT(static_cast<double>(encoded.size()), 0.753 * static_cast<double>(raw.size()));
  ExpectSameAfterwards(raw);
}

TEST_P(Bf16CodecTest, TakesNoEscapesForSixteenExponents) {
  const Bytes raw =
      Elements(8192, [](size_t i) { return static_cast<uint16_t>((i % 16) << 7 | (i & 0x807f)); });
  EXPECT_EQ(Encode(raw).size(), MinEncodedBytes(raw.size()));
  ExpectSameAfterwards(raw);
}

TEST_P(Bf16CodecTest, TakesNothingForAnEmptyBlock) {
  EXPECT_EQ(EncodeBf16({}, {}, GetParam()), 0);
  EXPECT_TRUE(DecodeBf16({}, {}, {}, GetParam()));
}

TEST_P(Bf16CodecTest, SaysWhenABlockDoesNotFit) {
  const Bytes raw = Elements(8192, [this](size_t) { return static_cast<uint16_t>(random_()); });
  const size_t needed = Encode(raw).size();
  Bytes out(needed);
  EXPECT_EQ(EncodeBf16(raw, out, GetParam()), needed);
  for (const size_t less : {size_t{1}, size_t{3}, needed - MinEncodedBytes(raw.size()), needed}) {
    EXPECT_EQ(EncodeBf16(raw, std::span(out).first(needed - less), GetParam()), std::nullopt);
  }
}

TEST_P(Bf16CodecTest, EncodesAsEveryOtherLevel) {
  std::normal_distribution<float> normal(0, 1);
  const Bytes raw = Elements(20480, [&](size_t i) {
    return i % 50 == 0 ? static_cast<uint16_t>(random_()) : Bf16(normal(random_));
  });
  Bytes scalar(2 * raw.size());
  scalar.resize(EncodeBf16(raw, scalar, VectorLevel::kScalar).value());
  EXPECT_EQ(Encode(raw), scalar);
}

TEST_P(Bf16CodecTest, TellsOfEachSegmentOnceInOrder) {
  const Bytes raw = Elements(20480, [](size_t i) { return static_cast<uint16_t>(i); });
  const Bytes encoded = Encode(raw);
  Bytes decoded(raw.size());
  Bytes heard;
  EXPECT_TRUE(DecodeBf16(
      encoded, decoded,
      [&](std::span<const std::byte> segment) {
        heard.insert(heard.end(), segment.begin(), segment.end());
      },
      GetParam()));
  EXPECT_EQ(heard, raw);
}

TEST_P(Bf16CodecTest, RefusesACodeThatIsCutShort) {
  const Bytes raw = Elements(8320, [this](size_t) { return static_cast<uint16_t>(random_()); });
  const Bytes encoded = Encode(raw);
  Bytes decoded(raw.size());
  for (size_t bytes = 0; bytes < encoded.size(); bytes += 97) {
    // In memory of its own, so that a sanitizer sees a read beyond it.
    const Bytes cut(encoded.begin(), encoded.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_FALSE(DecodeBf16(cut, decoded, {}, GetParam()));
  }
}

TEST_P(Bf16CodecTest, RefusesEscapesThatCannotBe) {
  const Bytes raw = Elements(64, [](size_t i) { return static_cast<uint16_t>(i << 7); });
  const Bytes encoded = Encode(raw);
  ASSERT_GT(encoded.size(), MinEncodedBytes(raw.size()));
  Bytes decoded(raw.size());

  Bytes too_many = encoded;
  std::memset(&too_many[16], 0xff, 4);
  EXPECT_FALSE(DecodeBf16(too_many, decoded, {}, GetParam()));

  Bytes beyond = encoded;
  const uint16_t element = 64;
  std::memcpy(&beyond[MinEncodedBytes(raw.size())], &element, sizeof(element));
  EXPECT_FALSE(DecodeBf16(beyond, decoded, {}, GetParam()));
}

TEST_P(Bf16CodecTest, WritesNowhereElseWhateverTheBytes) {
  for (int i = 0; i < 200; ++i) {
    const size_t raw_bytes = 128 * (1 + random_() % 300);
    Bytes encoded(MinEncodedBytes(raw_bytes) + random_() % 3000);
    for (std::byte& byte : encoded) byte = static_cast<std::byte>(random_());
    // Few escapes, so that some of these are read to their end.
    for (size_t at = 16; at < encoded.size() && i % 2 == 0; at += 20) {
      std::memset(&encoded[at], 0, 4);
    }
    constexpr size_t kMargin = 64;
    Bytes decoded(raw_bytes + 2 * kMargin, std::byte{0x5a});
    (void)DecodeBf16(encoded, std::span(decoded).subspan(kMargin, raw_bytes), {}, GetParam());
    for (size_t at = 0; at < kMargin; ++at) {
      ASSERT_EQ(decoded[at], std::byte{0x5a});
      ASSERT_EQ(decoded[kMargin + raw_bytes + at], std::byte{0x5a});
    }
  }
}

std::string LevelName(const testing::TestParamInfo<VectorLevel>& level) {
  constexpr std::array kNames = {"Scalar", "Avx2", "Avx512"};
  return kNames[static_cast<size_t>(level.param)];
}

INSTANTIATE_TEST_SUITE_P(Levels, Bf16CodecTest,
                         testing::Values(VectorLevel::kScalar, VectorLevel::kAvx2,
                                         VectorLevel::kAvx512),
                         LevelName);

}  // namespace
}  // namespace kvtier
