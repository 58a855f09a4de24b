// SPDX-License-Identifier: Apache-2.0
// The numbers and names of the messages, and the two functions that make frames of messages and
// messages of frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvtier::wire {

// X(enumerator, number, name), in the order of the numbers, which have no gaps. A message that a
// later 1.x adds is appended; see "Versions" in docs/PROTOCOL.md.
#define KVT_MESSAGES(X)                              \
  X(kHello, 1, "HELLO")                              \
  X(kHelloReply, 2, "HELLO_REPLY")                   \
  X(kRegisterModel, 3, "REGISTER_MODEL")             \
  X(kRegisterModelReply, 4, "REGISTER_MODEL_REPLY")  \
  X(kDevices, 5, "DEVICES")                          \
  X(kDevicesReply, 6, "DEVICES_REPLY")               \
  X(kAttach, 7, "ATTACH")                            \
  X(kAttachReply, 8, "ATTACH_REPLY")                 \
  X(kAcquire, 9, "ACQUIRE")                          \
  X(kAcquireReply, 10, "ACQUIRE_REPLY")              \
  X(kLoadProgress, 11, "LOAD_PROGRESS")              \
  X(kCommit, 12, "COMMIT")                           \
  X(kCommitReply, 13, "COMMIT_REPLY")                \
  X(kRelease, 14, "RELEASE")                         \
  X(kReleaseReply, 15, "RELEASE_REPLY")              \
  X(kPrefetch, 16, "PREFETCH")                       \
  X(kPrefetchReply, 17, "PREFETCH_REPLY")            \
  X(kLookup, 18, "LOOKUP")                           \
  X(kLookupReply, 19, "LOOKUP_REPLY")                \
  X(kPin, 20, "PIN")                                 \
  X(kPinReply, 21, "PIN_REPLY")                      \
  X(kWorkspace, 22, "WORKSPACE")                     \
  X(kWorkspaceReply, 23, "WORKSPACE_REPLY")          \
  X(kWorkspaceClose, 24, "WORKSPACE_CLOSE")          \
  X(kAttend, 25, "ATTEND")                           \
  X(kAttendReply, 26, "ATTEND_REPLY")                \
  X(kStats, 27, "STATS")                             \
  X(kStatsReply, 28, "STATS_REPLY")                  \
  X(kPing, 29, "PING")                               \
  X(kPong, 30, "PONG")                               \
  X(kError, 31, "ERROR")                             \
  X(kAdminRequest, 32, "ADMIN_REQUEST")              \
  X(kAdminProgress, 33, "ADMIN_PROGRESS")            \
  X(kAdminReply, 34, "ADMIN_REPLY")                  \
  X(kOpenRegion, 35, "OPEN_REGION")                  \
  X(kOpenRegionReply, 36, "OPEN_REGION_REPLY")       \
  X(kCloseRegion, 37, "CLOSE_REGION")                \
  X(kCloseRegionReply, 38, "CLOSE_REGION_REPLY")     \
  X(kStore, 39, "STORE")                             \
  X(kLoad, 40, "LOAD")                               \
  X(kTransferDone, 41, "TRANSFER_DONE")              \
  X(kKeepMemory, 42, "KEEP_MEMORY")                  \
  X(kKeepMemoryReply, 43, "KEEP_MEMORY_REPLY")       \
  X(kTakeMemory, 44, "TAKE_MEMORY")                  \
  X(kTakeMemoryReply, 45, "TAKE_MEMORY_REPLY")       \
  X(kReleaseMemory, 46, "RELEASE_MEMORY")            \
  X(kReleaseMemoryReply, 47, "RELEASE_MEMORY_REPLY") \
  X(kHint, 48, "HINT")                               \
  X(kHintReply, 49, "HINT_REPLY")                    \
  X(kResume, 50, "RESUME")                           \
  X(kResumeReply, 51, "RESUME_REPLY")                \
  X(kTokens, 52, "TOKENS")                           \
  X(kTokensReply, 53, "TOKENS_REPLY")                \
  X(kDetach, 54, "DETACH")

enum class MessageType : uint16_t {
#define KVT_X(enumerator, number, name) enumerator = number,
  KVT_MESSAGES(KVT_X)
#undef KVT_X
};

// "ACQUIRE_REPLY"; "unknown" for a number that no message has.
[[nodiscard]] constexpr std::string_view MessageTypeName(MessageType type) {
  switch (type) {
#define KVT_X(enumerator, number, name) \
  case MessageType::enumerator:         \
    return name;
    KVT_MESSAGES(KVT_X)
#undef KVT_X
  }
  return "unknown";
}
[[nodiscard]] constexpr std::string_view MessageTypeName(uint16_t type) {
  return MessageTypeName(static_cast<MessageType>(type));
}

// Appends one frame to `out`, which may hold others; `out` is unchanged on errors. `flags` are
// those of frame.h. The texts of errors are cut to fit. Defined for every message of messages.h;
// may be called from any thread. Errors: kLimitExceeded, as those of Decode (a list or a text
// passes limits.h).
template <typename Message>
[[nodiscard]] Status TryEncode(const Message& message, uint64_t request_id,
                               std::vector<std::byte>* out, uint16_t flags = 0);
// The same of a message whose sender has seen to its lists and texts.
template <typename Message>
void Encode(const Message& message, uint64_t request_id, std::vector<std::byte>* out,
            uint16_t flags = 0) {
  KVT_CHECK(TryEncode(message, request_id, out, flags).has_value());
}

// The message that a payload holds. Pure; trusts nothing: counts are bounded and compared with what
// remains before anything is allocated, enum values and texts are checked, bytes left over are an
// error. A span member of the result points into `payload`. Errors concern that message alone,
// since the frame's end is known: kInvalidArgument "truncated_message", "trailing_bytes",
// "bad_enum", "bad_text", "unknown_bits" and those that the message names; kLimitExceeded
// "too_many_hashes", "too_many_blocks", "too_many_partial_blocks", "text_too_long".
template <typename Message>
[[nodiscard]] Result<Message> Decode(std::span<const std::byte> payload);

}  // namespace kvtier::wire
