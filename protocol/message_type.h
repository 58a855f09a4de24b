// SPDX-License-Identifier: Apache-2.0
// What a frame carries.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvtier::wire {

// Values never change; new ones are appended.
enum class MessageType : uint16_t {
  kHello = 1,
  kHelloReply = 2,
  kRegisterModel = 3,
  kRegisterModelReply = 4,
  kAttach = 5,
  kAttachReply = 6,
  kAcquire = 7,
  kAcquireReply = 8,
  kLoadProgress = 9,
  kCommit = 10,
  kCommitReply = 11,
  kRelease = 12,
  kReleaseReply = 13,
  kPrefetch = 14,
  kPrefetchReply = 15,
  kLookup = 16,
  kLookupReply = 17,
  kPin = 18,
  kPinReply = 19,
  kStats = 20,
  kStatsReply = 21,
  kPing = 22,
  kPong = 23,
  kError = 24,
  kAcquireCounted = 25,
  kAcquireCountedReply = 26,
  kWorkspace = 28,
  kWorkspaceReply = 29,
  kAttend = 30,
  kAttendReply = 31,
  // The admin socket's.
  kAdminRequest = 32,
  kAdminProgress = 33,
  kAdminReply = 34,
  // More of the clients'.
  kDevices = 40,
  kDevicesReply = 41,
  kAttendScaled = 42,
  kWorkspaceClose = 43,
};

// "ACQUIRE_REPLY"; "unknown" for a number that no message has.
[[nodiscard]] std::string_view MessageTypeName(uint16_t type);
[[nodiscard]] inline std::string_view MessageTypeName(MessageType type) {
  return MessageTypeName(static_cast<uint16_t>(type));
}

}  // namespace kvtier::wire
