// SPDX-License-Identifier: Apache-2.0
// Events of one topic that travel together, and their form in MessagePack: what vLLM's publisher of
// KV events sends and routers read (docs/EVENTS.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "daemon/config/config.h"
#include "tiers/state/block_event_sink.h"

namespace kvtier {

// How a tier is called in events.
[[nodiscard]] std::string_view MediumName(Tier tier, EventFormat format);

// Event loop only.
class EventBatch {
 public:
  // Blocks in one batch; its owner ends a batch that has so many.
  static constexpr size_t kMaxBlocks = 1024;
  // Likewise token ids.
  static constexpr size_t kMaxTokenIds = 65'536;

  // Clears all blocks of the topic, in all tiers.
  void AddCleared();
  // `group`: which of a model's groups of layers the block is of; none if it has but one. A block
  // that follows the last one added joins its event, unless one of them has token ids and the other
  // has none; and so does a removal a removal.
  void AddStored(const StoredBlock& block, std::optional<uint32_t> group);
  void AddRemoved(const BlockHash& hash, Tier tier, std::optional<uint32_t> group);

  // Blocks and clearances.
  [[nodiscard]] size_t size() const { return hashes_.size() + cleared_; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] bool full() const {
    return size() >= kMaxBlocks || token_ids_.size() >= kMaxTokenIds;
  }

  // Adds all events of another batch, which is empty afterwards.
  void Append(EventBatch* other);
  // The payload of the batch, which is empty afterwards. One without events has a payload, too.
  [[nodiscard]] std::string Take(EventFormat format, int64_t now_ms);

 private:
  enum class Kind : uint8_t { kCleared, kStored, kRemoved };
  struct Event {
    Kind kind = Kind::kCleared;
    Tier tier = Tier::kPool;
    uint16_t tokens = 0;
    std::optional<uint32_t> group;
    std::optional<BlockHash> parent;
    uint32_t hashes = 0;
    uint32_t token_ids = 0;
  };
  class Encoder;

  void Clear();

  std::vector<Event> events_;
  std::vector<BlockHash> hashes_;    // of one event after the other
  std::vector<uint32_t> token_ids_;  // likewise
  size_t cleared_ = 0;
};

}  // namespace kvtier
