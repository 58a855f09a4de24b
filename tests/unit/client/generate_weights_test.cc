// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "client/examples/weights.h"

namespace kvtier::generate {
namespace {

constexpr size_t kDigestBytes = 32;
// Offsets of the header's fields.
constexpr size_t kVersionAt = 8;
constexpr size_t kLayersAt = 12;
constexpr size_t kWidthAt = 16;
constexpr size_t kQueryHeadsAt = 20;
constexpr size_t kKvHeadsAt = 24;
constexpr size_t kHeadDimAt = 28;
constexpr size_t kHiddenAt = 32;
constexpr size_t kVocabularyAt = 36;
constexpr size_t kMaxPositionsAt = 40;
constexpr size_t kRopeThetaAt = 44;
constexpr size_t kNormEpsilonAt = 48;

using Bytes = std::vector<std::byte>;

void Sign(Bytes* file) {
  const size_t length = file->size() - kDigestBytes;
  const Digest256 digest = Sha256(std::span(*file).first(length));
  std::memcpy(file->data() + length, digest.bytes.data(), kDigestBytes);
}

void SetField(Bytes* file, size_t offset, uint32_t value) {
  std::memcpy(file->data() + offset, &value, sizeof(value));
  Sign(file);
}

// The smallest model there is: 1 layer, width 16, one head, hidden 16, all parameters 1.
Bytes SmallFile() {
  ByteWriter writer;
  writer.WriteBytes(std::as_bytes(std::span("kvtmodel", 8)));
  for (const uint32_t field : {1, 1, 16, 1, 1, 32, 16, 256, 64}) writer.Write(field);
  writer.Write(std::bit_cast<uint32_t>(10000.0f));
  writer.Write(std::bit_cast<uint32_t>(1e-5f));
  const size_t parameters = 256 * 16 + 16 + 4 * 32 * 16 + 16 + 3 * 16 * 16 + 16;
  for (size_t i = 0; i < parameters; ++i) writer.Write(uint16_t{0x3F80});
  writer.WriteDigest(Digest256{});
  Bytes file = writer.Take();
  Sign(&file);
  return file;
}

std::string ReasonFor(const Bytes& file) {
  const Result<Weights> weights = ParseWeights(file);
  return weights ? "accepted" : weights.error().reason;
}

std::string ReasonAfter(const std::function<void(Bytes*)>& change) {
  Bytes file = SmallFile();
  change(&file);
  return ReasonFor(file);
}

TEST(WeightsTest, SmallFileIsReadExactly) {
  const Result<Weights> weights = ParseWeights(SmallFile());
  ASSERT_TRUE(weights) << weights.error().ToString();
  EXPECT_EQ(weights->shape.width, 16u);
  EXPECT_EQ(weights->layers.size(), 1u);
  EXPECT_EQ(weights->final_norm, std::vector<float>(16, 1.0f));
  EXPECT_EQ(weights->layers[0].query.outputs(), 32u);
}

TEST(WeightsTest, CommittedFileIsAsTheModelCardSays) {
  const Result<Weights> weights = LoadWeights(KVT_WEIGHTS_PATH);
  ASSERT_TRUE(weights) << weights.error().ToString();
  EXPECT_EQ(weights->shape.layers, 6u);
  EXPECT_EQ(weights->shape.width, 256u);
  EXPECT_EQ(weights->shape.query_heads, 8u);
  EXPECT_EQ(weights->shape.kv_heads, 4u);
  EXPECT_EQ(weights->shape.hidden, 640u);
  EXPECT_EQ(weights->shape.max_positions, 4096u);
}

TEST(WeightsTest, AnyFlippedBitIsNoticed) {
  const Bytes intact = SmallFile();
  for (size_t at = 8; at < intact.size(); at += 97) {
    Bytes file = intact;
    file[at] ^= std::byte{0x10};
    EXPECT_EQ(ReasonFor(file), "weights_digest") << at;
  }
}

TEST(WeightsTest, AnyTruncationIsNoticed) {
  const Bytes intact = SmallFile();
  for (size_t length = 0; length < intact.size(); length += 61) {
    const std::string reason = ReasonFor(Bytes(intact.begin(), intact.begin() + length));
    EXPECT_TRUE(reason == "weights_digest" || reason == "weights_magic") << length << reason;
  }
}

TEST(WeightsTest, WrongMagicIsRefused) {
  EXPECT_EQ(ReasonAfter([](Bytes* file) { (*file)[0] = std::byte{'x'}; }), "weights_magic");
  EXPECT_EQ(ReasonFor({}), "weights_magic");
}

TEST(WeightsTest, UnknownVersionIsRefused) {
  EXPECT_EQ(ReasonAfter([](Bytes* file) { SetField(file, kVersionAt, 2); }), "weights_version");
}

// The file's first `length` bytes, zeros beyond its own, with a digest that fits.
Bytes SignedFileOfLength(size_t length) {
  const Bytes file = SmallFile();
  Bytes other(length + kDigestBytes);
  std::copy_n(file.begin(), std::min(length, file.size() - kDigestBytes), other.begin());
  Sign(&other);
  return other;
}

TEST(WeightsTest, SignedFileOfTheWrongLengthIsRefused) {
  const size_t right = SmallFile().size() - kDigestBytes;
  EXPECT_EQ(ReasonFor(SignedFileOfLength(right)), "accepted");
  EXPECT_EQ(ReasonFor(SignedFileOfLength(right + 2)), "weights_length");
  EXPECT_EQ(ReasonFor(SignedFileOfLength(right - 2)), "weights_length");
  EXPECT_EQ(ReasonFor(SignedFileOfLength(30)), "weights_length");
}

struct BadField {
  const char* name;
  size_t offset;
  uint32_t value;
};

class BadShapeTest : public testing::TestWithParam<BadField> {};

TEST_P(BadShapeTest, IsRefusedWithTheFieldsName) {
  Bytes file = SmallFile();
  SetField(&file, GetParam().offset, GetParam().value);
  const Result<Weights> weights = ParseWeights(file);
  ASSERT_FALSE(weights);
  EXPECT_EQ(weights.error().reason, "weights_shape");
  EXPECT_EQ(weights.error().context, GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadShapeTest,
    testing::Values(
        BadField{"layers", kLayersAt, 0}, BadField{"layers", kLayersAt, 0xFFFFFFFF},
        BadField{"width", kWidthAt, 0}, BadField{"width", kWidthAt, 24},
        BadField{"width", kWidthAt, 0xFFFFFFF0}, BadField{"query_heads", kQueryHeadsAt, 0},
        BadField{"query_heads", kQueryHeadsAt, 0x80000000}, BadField{"kv_heads", kKvHeadsAt, 0},
        BadField{"query_heads", kKvHeadsAt, 2}, BadField{"kv_heads", kKvHeadsAt, 0x10000000},
        BadField{"head_dim", kHeadDimAt, 64}, BadField{"hidden", kHiddenAt, 0},
        BadField{"hidden", kHiddenAt, 17}, BadField{"vocabulary", kVocabularyAt, 257},
        BadField{"max_positions", kMaxPositionsAt, 0},
        BadField{"max_positions", kMaxPositionsAt, 0xFFFFFFFF},
        BadField{"rope_theta", kRopeThetaAt, 0x7FC00000}, BadField{"rope_theta", kRopeThetaAt, 0},
        BadField{"norm_epsilon", kNormEpsilonAt, 0x7FC00000},
        BadField{"norm_epsilon", kNormEpsilonAt, 0}));

TEST(WeightsTest, MissingFileIsNotFound) {
  const Result<Weights> weights = LoadWeights("/nonexistent/model");
  ASSERT_FALSE(weights);
  EXPECT_EQ(weights.error().code, ErrorCode::kNotFound);
}

TEST(WeightsTest, DirectoryIsAnIoError) {
  const Result<Weights> weights = LoadWeights("/");
  ASSERT_FALSE(weights);
  EXPECT_EQ(weights.error().code, ErrorCode::kIoError);
}

TEST(ReadFileTest, FileBeyondTheLimitIsRefused) {
  const Result<std::string> contents = ReadFile(KVT_WEIGHTS_PATH, 1000);
  ASSERT_FALSE(contents);
  EXPECT_EQ(contents.error().reason, "file_too_large");
}

}  // namespace
}  // namespace kvtier::generate
