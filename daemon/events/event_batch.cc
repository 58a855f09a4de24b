// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_batch.h"

#include <array>
#include <span>

#include "daemon/events/msgpack_writer.h"

namespace kvtier {
namespace {

uint64_t BigEndian(std::span<const uint8_t, 8> bytes) {
  uint64_t value = 0;
  for (const uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

}  // namespace

std::string_view MediumName(Tier tier, EventFormat format) {
  static constexpr std::array<std::array<std::string_view, kTierCount>, 2> kNames = {
      {{"GPU", "CPU", "STORAGE"}, {"GPU", "CPU_PINNED", "DISK"}}};
  return kNames[format == EventFormat::kSglang ? 1 : 0][static_cast<size_t>(tier)];
}

void EventBatch::AddCleared() {
  events_.push_back({.kind = Kind::kCleared});
  ++cleared_;
}

void EventBatch::AddStored(const StoredBlock& block, std::optional<uint32_t> group) {
  const Event* const last = events_.empty() ? nullptr : &events_.back();
  const bool joins = last != nullptr && last->kind == Kind::kStored && last->tier == block.tier &&
                     last->tokens == block.tokens && last->group == group &&
                     (last->token_ids > 0) == !block.token_ids.empty() &&
                     block.parent == hashes_.back();
  if (!joins) {
    events_.push_back({.kind = Kind::kStored,
                       .tier = block.tier,
                       .tokens = block.tokens,
                       .group = group,
                       .parent = block.parent});
  }
  ++events_.back().hashes;
  hashes_.push_back(block.key.hash);
  events_.back().token_ids += static_cast<uint32_t>(block.token_ids.size());
  token_ids_.insert(token_ids_.end(), block.token_ids.begin(), block.token_ids.end());
}

void EventBatch::AddRemoved(const BlockHash& hash, Tier tier, std::optional<uint32_t> group) {
  const Event* const last = events_.empty() ? nullptr : &events_.back();
  const bool joins =
      last != nullptr && last->kind == Kind::kRemoved && last->tier == tier && last->group == group;
  if (!joins) events_.push_back({.kind = Kind::kRemoved, .tier = tier, .group = group});
  ++events_.back().hashes;
  hashes_.push_back(hash);
}

// Writes the fields of one event after the other; in a map each stands behind its name.
class EventBatch::Encoder {
 public:
  Encoder(EventFormat format, std::string* out)
      : format_(format),
        map_(format != EventFormat::kLlmd && format != EventFormat::kLlmdBytes),
        writer_(out) {}

  void Write(const Event& event, std::span<const BlockHash> hashes,
             std::span<const uint32_t> token_ids) {
    switch (event.kind) {
      case Kind::kCleared:
        return Begin("AllBlocksCleared", 0);
      case Kind::kStored:
        return WriteStored(event, hashes, token_ids);
      case Kind::kRemoved:
        return WriteRemoved(event, hashes);
    }
  }

 private:
  void WriteStored(const Event& event, std::span<const BlockHash> hashes,
                   std::span<const uint32_t> token_ids) {
    // In an array a field can be left out only together with all behind it.
    Begin("BlockStored", map_ ? 7 + event.group.has_value() : event.group ? 9 : 6);
    WriteHashes(hashes);
    Name("parent_block_hash");
    if (event.parent) {
      WriteHash(*event.parent);
    } else {
      writer_.WriteNull();
    }
    Name("token_ids");
    writer_.WriteArray(static_cast<uint32_t>(token_ids.size()));
    for (const uint32_t id : token_ids) writer_.WriteUnsigned(id);
    Name("block_size");
    writer_.WriteUnsigned(event.tokens);
    Name("lora_id");
    writer_.WriteNull();
    WriteMedium(event.tier);
    if (map_ || event.group) {
      Name("lora_name");
      writer_.WriteNull();
    }
    if (!map_ && event.group) writer_.WriteNull();  // extra_keys
    WriteGroup(event.group);
  }

  void WriteRemoved(const Event& event, std::span<const BlockHash> hashes) {
    Begin("BlockRemoved", 2 + event.group.has_value());
    WriteHashes(hashes);
    WriteMedium(event.tier);
    WriteGroup(event.group);
  }

  void Begin(std::string_view type, uint32_t fields) {
    if (map_) {
      writer_.WriteMap(1 + fields);
    } else {
      writer_.WriteArray(1 + fields);
    }
    Name("type");
    writer_.WriteText(type);
  }
  void Name(std::string_view name) {
    if (map_) writer_.WriteText(name);
  }
  void WriteHashes(std::span<const BlockHash> hashes) {
    Name("block_hashes");
    writer_.WriteArray(static_cast<uint32_t>(hashes.size()));
    for (const BlockHash& hash : hashes) WriteHash(hash);
  }
  void WriteMedium(Tier tier) {
    Name("medium");
    writer_.WriteText(MediumName(tier, format_));
  }
  void WriteGroup(std::optional<uint32_t> group) {
    if (!group) return;
    Name("group_idx");
    writer_.WriteUnsigned(*group);
  }
  // As an integer the engines take different ends of a hash.
  void WriteHash(const BlockHash& hash) {
    const std::span<const uint8_t, 32> bytes(hash.bytes);
    if (format_ == EventFormat::kVllmBytes || format_ == EventFormat::kLlmdBytes) {
      writer_.WriteBytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    } else if (format_ == EventFormat::kSglang) {
      writer_.WriteInteger(static_cast<int64_t>(BigEndian(bytes.first<8>())));
    } else {
      writer_.WriteUnsigned(BigEndian(bytes.last<8>()));
    }
  }

  const EventFormat format_;
  const bool map_;
  MsgpackWriter writer_;
};

std::string EventBatch::Take(EventFormat format, int64_t now_ms) {
  std::string payload;
  payload.reserve(64 + 96 * events_.size() + 34 * hashes_.size() + 5 * token_ids_.size());
  MsgpackWriter writer(&payload);
  writer.WriteArray(3);
  writer.WriteDouble(static_cast<double>(now_ms) / 1000);
  writer.WriteArray(static_cast<uint32_t>(events_.size()));
  Encoder encoder(format, &payload);
  std::span<const BlockHash> hashes = hashes_;
  std::span<const uint32_t> token_ids = token_ids_;
  for (const Event& event : events_) {
    encoder.Write(event, hashes.first(event.hashes), token_ids.first(event.token_ids));
    hashes = hashes.subspan(event.hashes);
    token_ids = token_ids.subspan(event.token_ids);
  }
  writer.WriteUnsigned(0);  // the rank: one daemon has one
  Clear();
  return payload;
}

void EventBatch::Append(EventBatch* other) {
  events_.insert(events_.end(), other->events_.begin(), other->events_.end());
  hashes_.insert(hashes_.end(), other->hashes_.begin(), other->hashes_.end());
  token_ids_.insert(token_ids_.end(), other->token_ids_.begin(), other->token_ids_.end());
  cleared_ += other->cleared_;
  other->Clear();
}

void EventBatch::Clear() {
  events_.clear();
  hashes_.clear();
  token_ids_.clear();
  cleared_ = 0;
}

}  // namespace kvtier
