// SPDX-License-Identifier: Apache-2.0
// Messages as they travel, for tests of what Decode takes and refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "protocol/frame.h"
#include "protocol/messages.h"

namespace kvtier::wire {

// A hash for each number.
inline BlockHash HashOf(uint32_t number) {
  BlockHash hash;
  std::memcpy(hash.bytes.data(), &number, sizeof(number));
  return hash;
}

// The bytes behind the frame's header.
template <typename Message>
std::vector<std::byte> PayloadOf(const Message& message) {
  std::vector<std::byte> frame;
  Encode(message, 1, &frame);
  return {frame.begin() + kFrameHeaderBytes, frame.end()};
}

// With which reason Decode refuses the message; empty if it takes it.
template <typename Message>
std::string ReasonFor(const Message& message) {
  const auto decoded = Decode<Message>(PayloadOf(message));
  return decoded ? "" : decoded.error().reason;
}

}  // namespace kvtier::wire
