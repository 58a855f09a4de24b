// SPDX-License-Identifier: Apache-2.0
#include "client/examples/weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/posix.h"
#include "client/examples/lanes.h"

namespace kvtier::generate {
namespace {

constexpr std::string_view kMagic = "kvtmodel";
constexpr uint32_t kVersion = 1;
constexpr size_t kDigestBytes = sizeof(Digest256);
// Larger than any model this program could run in good time.
constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr uint32_t kMaxLayers = 64;
constexpr uint32_t kMaxWidth = 4096;
constexpr uint32_t kMaxPositions = 65536;
constexpr uint32_t kByteVocabulary = 256;

bool IsWidth(uint32_t value) { return value > 0 && value <= kMaxWidth && value % kLanes == 0; }

Status CheckShape(const ModelShape& shape, uint32_t head_dim) {
  const auto refuse = [](const char* what) {
    return MakeError(ErrorCode::kUnsupported, "weights_shape", what);
  };
  if (shape.layers == 0 || shape.layers > kMaxLayers) return refuse("layers");
  if (!IsWidth(shape.width)) return refuse("width");
  if (!IsWidth(shape.hidden)) return refuse("hidden");
  if (head_dim != kHeadDim) return refuse("head_dim");
  if (shape.kv_heads == 0 || shape.kv_heads > kMaxWidth / kHeadDim) return refuse("kv_heads");
  if (shape.query_heads == 0 || shape.query_heads > kMaxWidth / kHeadDim ||
      shape.query_heads % shape.kv_heads != 0) {
    return refuse("query_heads");
  }
  if (shape.vocabulary != kByteVocabulary) return refuse("vocabulary");
  if (shape.max_positions == 0 || shape.max_positions > kMaxPositions) {
    return refuse("max_positions");
  }
  if (!(shape.rope_theta >= 1 && std::isfinite(shape.rope_theta))) return refuse("rope_theta");
  if (!(shape.norm_epsilon > 0 && shape.norm_epsilon < 1)) return refuse("norm_epsilon");
  return {};
}

Result<ModelShape> ReadShape(ByteReader* reader) {
  ModelShape shape;
  shape.layers = reader->Read<uint32_t>();
  shape.width = reader->Read<uint32_t>();
  shape.query_heads = reader->Read<uint32_t>();
  shape.kv_heads = reader->Read<uint32_t>();
  const uint32_t head_dim = reader->Read<uint32_t>();
  shape.hidden = reader->Read<uint32_t>();
  shape.vocabulary = reader->Read<uint32_t>();
  shape.max_positions = reader->Read<uint32_t>();
  shape.rope_theta = std::bit_cast<float>(reader->Read<uint32_t>());
  shape.norm_epsilon = std::bit_cast<float>(reader->Read<uint32_t>());
  if (!reader->ok()) return MakeError(ErrorCode::kCorrupt, "weights_length", "header");
  KVT_RETURN_IF_ERROR(CheckShape(shape, head_dim));
  return shape;
}

// bf16 is the upper half of an FP32. Empty if the file ends before.
std::vector<float> ReadTensor(ByteReader* reader, size_t count) {
  const std::span<const std::byte> bytes = reader->ReadBytes(count * sizeof(uint16_t));
  std::vector<float> values(bytes.size() / sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto low = std::to_integer<uint32_t>(bytes[2 * i]);
    const auto high = std::to_integer<uint32_t>(bytes[2 * i + 1]);
    values[i] = std::bit_cast<float>(high << 24 | low << 16);
  }
  return values;
}

// Empty if the file ends before.
PackedMatrix ReadMatrix(ByteReader* reader, size_t outputs, size_t inputs) {
  const std::vector<float> values = ReadTensor(reader, outputs * inputs);
  return values.empty() ? PackedMatrix() : PackedMatrix(values, outputs, inputs);
}

LayerWeights ReadLayer(ByteReader* reader, const ModelShape& shape) {
  LayerWeights layer;
  layer.attention_norm = ReadTensor(reader, shape.width);
  layer.query = ReadMatrix(reader, shape.query_width(), shape.width);
  layer.key = ReadMatrix(reader, shape.kv_width(), shape.width);
  layer.value = ReadMatrix(reader, shape.kv_width(), shape.width);
  layer.attention_output = ReadMatrix(reader, shape.width, shape.query_width());
  layer.feed_forward_norm = ReadTensor(reader, shape.width);
  layer.gate = ReadMatrix(reader, shape.hidden, shape.width);
  layer.up = ReadMatrix(reader, shape.hidden, shape.width);
  layer.down = ReadMatrix(reader, shape.width, shape.hidden);
  return layer;
}

}  // namespace

Result<Weights> ParseWeights(std::span<const std::byte> file) {
  if (file.size() < kMagic.size() + sizeof(kVersion) + kDigestBytes ||
      std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0) {
    return MakeError(ErrorCode::kCorrupt, "weights_magic", "not a file of weights");
  }
  Weights weights;
  const std::span<const std::byte> contents = file.first(file.size() - kDigestBytes);
  weights.digest = ByteReader(file.last(kDigestBytes)).ReadDigest<kDigestBytes>();
  if (Sha256(contents) != weights.digest) {
    return MakeError(ErrorCode::kCorrupt, "weights_digest", "the file is damaged");
  }
  ByteReader reader(contents.subspan(kMagic.size()));
  if (const auto version = reader.Read<uint32_t>(); version != kVersion) {
    return MakeError(ErrorCode::kUnsupported, "weights_version", std::to_string(version));
  }
  KVT_ASSIGN_OR_RETURN(weights.shape, ReadShape(&reader));
  const ModelShape& shape = weights.shape;
  weights.embedding = ReadTensor(&reader, size_t{shape.vocabulary} * shape.width);
  for (uint32_t i = 0; i < shape.layers && reader.ok(); ++i) {
    weights.layers.push_back(ReadLayer(&reader, shape));
  }
  weights.final_norm = ReadTensor(&reader, shape.width);
  if (!reader.AtEnd()) return MakeError(ErrorCode::kCorrupt, "weights_length", "tensors");
  weights.logits = PackedMatrix(weights.embedding, shape.vocabulary, shape.width);
  return weights;
}

Result<Weights> LoadWeights(const std::string& path) {
  KVT_ASSIGN_OR_RETURN(const std::string file, ReadFile(path, kMaxFileBytes));
  return ParseWeights(std::as_bytes(std::span(file)));
}

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIoError;
    return tl::unexpected(ErrnoError(code, errno, "open " + path));
  }
  constexpr size_t kStepBytes = 1 << 20;
  std::string contents;
  while (true) {
    const size_t length = contents.size();
    contents.resize(length + kStepBytes);
    const ssize_t count = ::read(fd.get(), contents.data() + length, kStepBytes);
    if (count < 0 && errno != EINTR) {
      return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "read " + path));
    }
    contents.resize(length + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count == 0) return contents;
    if (contents.size() > max_bytes) {
      return MakeError(ErrorCode::kLimitExceeded, "file_too_large",
                       path + " has more than " + std::to_string(max_bytes) + " bytes");
    }
  }
}

}  // namespace kvtier::generate
