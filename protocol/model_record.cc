// SPDX-License-Identifier: Apache-2.0
#include "protocol/model_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/digest.h"
#include "protocol/limits.h"
#include "protocol/text.h"

namespace kvtier {
namespace {

constexpr uint32_t kModelMagic = 0x4d54564b;  // "KVTM"
constexpr uint16_t kModelVersion = 2;

// Hit rule, replicated, dtype, layout, seven u32, the bytes of a layer.
constexpr size_t kGroupBytes = 4 + 7 * 4 + 8;
// Magic, version, rank and size, four lengths or counts, the number of groups.
constexpr size_t kLongestFixedPart = 4 + 2 + 2 * 4 + 4 * 2 + 1 + kMaxModelGroups * kGroupBytes;
static_assert(kLongestFixedPart + 2 * kMaxModelNameBytes + kMaxHashRecipeBytes +
                  kMaxModelExtraCount * (4 + kMaxModelExtraKeyBytes + kMaxModelExtraValueBytes) <=
              wire::kMaxModelRecordBytes);

Status CheckRange(uint64_t value, uint64_t max, const char* noun, uint64_t min = 1) {
  if (value >= min && value <= max) return {};
  return MakeError(ErrorCode::kInvalidArgument, fmt::format("bad_{}", noun),
                   fmt::format("{} given; must be {} to {}", value, min, max));
}

Status CheckText(const std::string& text, size_t max_bytes, bool may_be_empty, const char* noun) {
  const bool long_enough = may_be_empty || !text.empty();
  if (long_enough && text.size() <= max_bytes && IsPlainText(text)) return {};
  return MakeError(ErrorCode::kInvalidArgument, fmt::format("bad_{}", noun),
                   fmt::format("{} bytes given; must be {} to {} bytes of printable UTF-8",
                               text.size(), may_be_empty ? 0 : 1, max_bytes));
}

// NAME/VERSION of few characters, so that two ways to write one recipe cannot look alike.
bool IsHashRecipe(std::string_view text) {
  const size_t slash = text.find('/');
  if (text.size() > kMaxHashRecipeBytes || slash == 0 || slash == std::string_view::npos) {
    return false;
  }
  const std::string_view name = text.substr(0, slash), version = text.substr(slash + 1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return std::ranges::all_of(name,
                             [&](char c) {
                               return (c >= 'a' && c <= 'z') || is_digit(c) || c == '-' ||
                                      c == '_' || c == '.';
                             }) &&
         !version.empty() && version[0] != '0' && std::ranges::all_of(version, is_digit);
}

Status CheckHashRecipe(std::string_view text) {
  if (IsHashRecipe(text)) return {};
  return MakeError(ErrorCode::kInvalidArgument, "bad_hash_recipe",
                   fmt::format("{} bytes given; must be NAME/VERSION, at most {} bytes: lower-case "
                               "letters, digits, '-', '_', '.'; and a number from 1 on",
                               text.size(), kMaxHashRecipeBytes));
}

Status CheckExtraCount(size_t count) {
  if (count <= kMaxModelExtraCount) return {};
  return MakeError(ErrorCode::kInvalidArgument, "too_many_extra",
                   fmt::format("{} given, at most {}", count, kMaxModelExtraCount));
}

Status CheckExtra(const std::vector<std::pair<std::string, std::string>>& extra) {
  KVT_RETURN_IF_ERROR(CheckExtraCount(extra.size()));
  for (size_t i = 0; i < extra.size(); ++i) {
    KVT_RETURN_IF_ERROR(CheckText(extra[i].first, kMaxModelExtraKeyBytes, false, "extra_key"));
    KVT_RETURN_IF_ERROR(CheckText(extra[i].second, kMaxModelExtraValueBytes, true, "extra_value"));
    if (i > 0 && extra[i - 1].first >= extra[i].first) {
      return MakeError(ErrorCode::kInvalidArgument, "extra_not_sorted",
                       fmt::format("\"{}\" after \"{}\"", extra[i].first, extra[i - 1].first));
    }
  }
  return {};
}

Status CheckGroupCount(size_t count) {
  if (count >= 1 && count <= kMaxModelGroups) return {};
  return MakeError(ErrorCode::kInvalidArgument, "bad_group_count",
                   fmt::format("{} given; must be 1 to {}", count, kMaxModelGroups));
}

template <typename Enum>
Status CheckEnum(Enum value, Enum first, Enum last, const char* reason) {
  if (value >= first && value <= last) return {};
  return MakeError(ErrorCode::kUnsupported, reason,
                   fmt::format("number {}", static_cast<int>(value)));
}

Status CheckWindow(const KvGroup& group) {
  const bool windowed = group.hit_rule == HitRule::kTrailing;
  return CheckRange(group.window_tokens, windowed ? kMaxModelWindowTokens : 0, "window_tokens",
                    windowed ? 1 : 0);
}

// Without keys and values beside each other their order says nothing, so that there is one value.
Status CheckHasNoOrder(const KvGroup& group) {
  return CheckEnum(group.layout, KvLayoutKind::kBlockFirst, KvLayoutKind::kBlockFirst,
                   "model_layout");
}

Status CheckDimensions(const KvGroup& group) {
  KVT_RETURN_IF_ERROR(CheckRange(group.kv_heads, kMaxModelKvHeads, "kv_heads"));
  KVT_RETURN_IF_ERROR(CheckRange(group.k_head_dim, kMaxModelHeadDim, "k_head_dim"));
  KVT_RETURN_IF_ERROR(CheckRange(group.v_head_dim, kMaxModelHeadDim, "v_head_dim", 0));
  if (group.v_head_dim == 0) KVT_RETURN_IF_ERROR(CheckHasNoOrder(group));
  return CheckRange(group.scale_bytes, kMaxModelScaleBytes, "scale_bytes", 0);
}

// Dimensions that an opaque group does not have are zero, so that equal records have one encoding.
Status CheckOpaque(const KvGroup& group) {
  KVT_RETURN_IF_ERROR(CheckRange(group.kv_heads, 0, "kv_heads", 0));
  KVT_RETURN_IF_ERROR(CheckRange(group.k_head_dim, 0, "k_head_dim", 0));
  KVT_RETURN_IF_ERROR(CheckRange(group.v_head_dim, 0, "v_head_dim", 0));
  KVT_RETURN_IF_ERROR(CheckRange(group.scale_bytes, 0, "scale_bytes", 0));
  KVT_RETURN_IF_ERROR(CheckHasNoOrder(group));
  return CheckRange(group.layer_bytes, kMaxModelBlockBytes, "layer_bytes");
}

void EncodeGroup(const KvGroup& group, ByteWriter* writer) {
  writer->Write(static_cast<uint8_t>(group.hit_rule));
  writer->Write(static_cast<uint8_t>(group.replicated ? 1 : 0));
  writer->Write(static_cast<uint8_t>(group.dtype));
  writer->Write(static_cast<uint8_t>(group.layout));
  for (const uint32_t field : {group.window_tokens, group.layers, group.kv_heads, group.k_head_dim,
                               group.v_head_dim, group.scale_bytes, group.block_tokens}) {
    writer->Write(field);
  }
  writer->Write(group.layer_bytes);
}

// Errors: kInvalidArgument "bad_replicated": only one value of a flag encodes it.
Result<KvGroup> DecodeGroup(ByteReader* reader) {
  KvGroup group;
  group.hit_rule = static_cast<HitRule>(reader->Read<uint8_t>());
  const auto replicated = reader->Read<uint8_t>();
  KVT_RETURN_IF_ERROR(CheckRange(replicated, 1, "replicated", 0));
  group.replicated = replicated != 0;
  group.dtype = static_cast<KvDtype>(reader->Read<uint8_t>());
  group.layout = static_cast<KvLayoutKind>(reader->Read<uint8_t>());
  for (uint32_t* field : {&group.window_tokens, &group.layers, &group.kv_heads, &group.k_head_dim,
                          &group.v_head_dim, &group.scale_bytes, &group.block_tokens}) {
    *field = reader->Read<uint32_t>();
  }
  group.layer_bytes = reader->Read<uint64_t>();
  return group;
}

}  // namespace

uint32_t KvDtypeBytes(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kFloat32:
      return 4;
    case KvDtype::kFloat16:
    case KvDtype::kBfloat16:
      return 2;
    case KvDtype::kFloat8E4m3:
    case KvDtype::kFloat8E5m2:
    case KvDtype::kInt8:
      return 1;
  }
  return 0;
}

std::string_view KvDtypeName(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kFloat32:
      return "f32";
    case KvDtype::kFloat16:
      return "f16";
    case KvDtype::kBfloat16:
      return "bf16";
    case KvDtype::kFloat8E4m3:
      return "f8e4m3";
    case KvDtype::kFloat8E5m2:
      return "f8e5m2";
    case KvDtype::kInt8:
      return "i8";
  }
  return "unknown";
}

Status KvGroup::Validate() const {
  KVT_RETURN_IF_ERROR(CheckEnum(hit_rule, HitRule::kAll, HitRule::kState, "model_hit_rule"));
  KVT_RETURN_IF_ERROR(CheckEnum(dtype, KvDtype::kFloat32, KvDtype::kInt8, "model_dtype"));
  KVT_RETURN_IF_ERROR(
      CheckEnum(layout, KvLayoutKind::kBlockFirst, KvLayoutKind::kInterleaved, "model_layout"));
  KVT_RETURN_IF_ERROR(CheckRange(layers, kMaxModelLayers, "layers"));
  KVT_RETURN_IF_ERROR(CheckRange(block_tokens, kMaxModelBlockTokens, "block_tokens"));
  KVT_RETURN_IF_ERROR(CheckWindow(*this));
  const bool opaque = IsOpaque() || hit_rule == HitRule::kState;
  KVT_RETURN_IF_ERROR(opaque ? CheckOpaque(*this) : CheckDimensions(*this));
  if (BlockBytes() <= kMaxModelBlockBytes) return {};
  return MakeError(ErrorCode::kLimitExceeded, "block_too_large",
                   fmt::format("{} bytes, at most {}", BlockBytes(), kMaxModelBlockBytes));
}

uint64_t KvGroup::LayerBytes() const {
  if (IsOpaque()) return layer_bytes;
  const uint64_t head_bytes =
      (uint64_t{k_head_dim} + v_head_dim) * KvDtypeBytes(dtype) + scale_bytes;
  return uint64_t{block_tokens} * kv_heads * head_bytes;
}

Status ModelRecord::Validate() const {
  KVT_RETURN_IF_ERROR(CheckText(name, kMaxModelNameBytes, false, "name"));
  KVT_RETURN_IF_ERROR(CheckText(revision, kMaxModelNameBytes, true, "revision"));
  KVT_RETURN_IF_ERROR(CheckHashRecipe(hash_recipe));
  KVT_RETURN_IF_ERROR(
      CheckRange(tensor_parallel_size, kMaxModelTensorParallelSize, "tensor_parallel_size"));
  if (tensor_parallel_rank >= tensor_parallel_size) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_tensor_parallel_rank",
                     fmt::format("rank {} of {}", tensor_parallel_rank, tensor_parallel_size));
  }
  KVT_RETURN_IF_ERROR(CheckExtra(extra));
  KVT_RETURN_IF_ERROR(CheckGroupCount(groups.size()));
  for (size_t i = 0; i < groups.size(); ++i) {
    Status status = groups[i].Validate();
    if (status) continue;
    Error error = std::move(status).error();
    error.context += fmt::format(", group {}", i);
    return tl::unexpected(std::move(error));
  }
  return {};
}

std::vector<std::byte> ModelRecord::Encode() const {
  ByteWriter writer;
  writer.Write(kModelMagic);
  writer.Write(kModelVersion);
  writer.Write(tensor_parallel_rank);
  writer.Write(tensor_parallel_size);
  writer.WriteString(name);
  writer.WriteString(revision);
  writer.WriteString(hash_recipe);
  writer.Write(static_cast<uint16_t>(extra.size()));
  for (const auto& [key, value] : extra) {
    writer.WriteString(key);
    writer.WriteString(value);
  }
  writer.Write(static_cast<uint8_t>(groups.size()));
  for (const KvGroup& group : groups) EncodeGroup(group, &writer);
  return writer.Take();
}

Result<ModelRecord> ModelRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (const auto magic = reader.Read<uint32_t>(); reader.ok() && magic != kModelMagic) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_model_magic",
                     fmt::format("{:#010x}", magic));
  }
  if (const auto version = reader.Read<uint16_t>(); reader.ok() && version != kModelVersion) {
    return MakeError(ErrorCode::kUnsupported, "model_version", fmt::format("{}", version));
  }
  ModelRecord record;
  record.tensor_parallel_rank = reader.Read<uint32_t>();
  record.tensor_parallel_size = reader.Read<uint32_t>();
  // Texts that are too long are Validate's to refuse; here only the input's end bounds them.
  record.name = reader.ReadString(UINT16_MAX);
  record.revision = reader.ReadString(UINT16_MAX);
  record.hash_recipe = reader.ReadString(UINT16_MAX);
  const size_t extra_count = reader.Read<uint16_t>();
  KVT_RETURN_IF_ERROR(CheckExtraCount(extra_count));
  for (size_t i = 0; i < extra_count && reader.ok(); ++i) {
    std::string key = reader.ReadString(UINT16_MAX);
    record.extra.emplace_back(std::move(key), reader.ReadString(UINT16_MAX));
  }
  const size_t group_count = reader.Read<uint8_t>();
  if (reader.ok()) KVT_RETURN_IF_ERROR(CheckGroupCount(group_count));
  record.groups.clear();
  for (size_t i = 0; i < group_count && reader.ok(); ++i) {
    KVT_ASSIGN_OR_RETURN(record.groups.emplace_back(), DecodeGroup(&reader));
  }
  if (!reader.ok()) {
    return MakeError(ErrorCode::kInvalidArgument, "truncated_model",
                     fmt::format("{} bytes end within a field", bytes.size()));
  }
  if (!reader.AtEnd()) {
    return MakeError(ErrorCode::kInvalidArgument, "trailing_bytes",
                     fmt::format("{} after the model record", reader.remaining()));
  }
  KVT_RETURN_IF_ERROR(record.Validate());
  return record;
}

ModelFingerprint ModelRecord::Fingerprint() const { return Sha256(Encode()); }

ModelFingerprint ModelRecord::GroupFingerprint(uint32_t group) const {
  ModelRecord alone = *this;
  alone.groups = {groups[group]};
  if (alone.groups[0].replicated) {
    alone.tensor_parallel_rank = 0;
    alone.tensor_parallel_size = 1;
  }
  std::vector<std::byte> identity = alone.Encode();
  identity.push_back(static_cast<std::byte>(group));
  return Sha256(identity);
}

}  // namespace kvtier
