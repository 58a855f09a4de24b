// SPDX-License-Identifier: Apache-2.0
// Messages of the admin socket: JSON texts both ways; see messages.h for the rules common to all.
// Decode checks the length only: whether the text is JSON is for the JSON parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"

namespace kvtier::wire {

struct AdminRequest {
  static constexpr MessageType kType = MessageType::kAdminRequest;
  std::string json;  // at most kMaxAdminRequestTextBytes

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<AdminRequest> Decode(std::span<const std::byte> payload);
};

// Any number of them may come before the reply.
struct AdminProgress {
  static constexpr MessageType kType = MessageType::kAdminProgress;
  std::string json;  // at most kMaxAdminReplyTextBytes

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<AdminProgress> Decode(std::span<const std::byte> payload);
};

struct AdminReply {
  static constexpr MessageType kType = MessageType::kAdminReply;
  std::string json;  // at most kMaxAdminReplyTextBytes

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<AdminReply> Decode(std::span<const std::byte> payload);
};

}  // namespace kvtier::wire
