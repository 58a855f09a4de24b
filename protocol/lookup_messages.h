// SPDX-License-Identifier: Apache-2.0
// Messages that ask about blocks or keep them, without referencing them; see messages.h for the
// rules common to all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"

namespace kvtier::wire {

struct Prefetch {
  static constexpr MessageType kType = MessageType::kPrefetch;
  PoolId pool;
  std::span<const BlockHash> hashes;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Prefetch> Decode(std::span<const std::byte> payload);
};

struct PrefetchReply {
  static constexpr MessageType kType = MessageType::kPrefetchReply;
  uint32_t count = 0;  // blocks in the pool or on their way to it

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<PrefetchReply> Decode(std::span<const std::byte> payload);
};

struct Lookup {
  static constexpr MessageType kType = MessageType::kLookup;
  PoolId pool;
  std::span<const BlockHash> hashes;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Lookup> Decode(std::span<const std::byte> payload);
};

inline constexpr uint8_t kPresentInPool = 1 << 0;
inline constexpr uint8_t kPresentInHost = 1 << 1;
inline constexpr uint8_t kPersistedOnDisk = 1 << 2;

struct LookupReply {
  static constexpr MessageType kType = MessageType::kLookupReply;
  // One per hash asked for: the bits above.
  std::vector<uint8_t> presence;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<LookupReply> Decode(std::span<const std::byte> payload);
};

struct Pin {
  static constexpr MessageType kType = MessageType::kPin;
  PoolId pool;
  int64_t ttl_ms = 0;  // 0 unpins; a negative one is refused: kInvalidArgument "bad_ttl"
  std::span<const BlockHash> hashes;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Pin> Decode(std::span<const std::byte> payload);
};

struct PinReply {
  static constexpr MessageType kType = MessageType::kPinReply;
  uint32_t count = 0;  // of the hashes, those cached and now pinned

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<PinReply> Decode(std::span<const std::byte> payload);
};

}  // namespace kvtier::wire
