// SPDX-License-Identifier: Apache-2.0
#include "protocol/message_type.h"

#include <algorithm>
#include <array>

namespace kvtier::wire {
namespace {

struct NamedType {
  MessageType type;
  std::string_view name;
};
constexpr auto kNames = std::to_array<NamedType>({
    {MessageType::kHello, "HELLO"},
    {MessageType::kHelloReply, "HELLO_REPLY"},
    {MessageType::kRegisterModel, "REGISTER_MODEL"},
    {MessageType::kRegisterModelReply, "REGISTER_MODEL_REPLY"},
    {MessageType::kAttach, "ATTACH"},
    {MessageType::kAttachReply, "ATTACH_REPLY"},
    {MessageType::kAcquire, "ACQUIRE"},
    {MessageType::kAcquireReply, "ACQUIRE_REPLY"},
    {MessageType::kAcquireCounted, "ACQUIRE_COUNTED"},
    {MessageType::kAcquireCountedReply, "ACQUIRE_COUNTED_REPLY"},
    {MessageType::kLoadProgress, "LOAD_PROGRESS"},
    {MessageType::kCommit, "COMMIT"},
    {MessageType::kCommitReply, "COMMIT_REPLY"},
    {MessageType::kRelease, "RELEASE"},
    {MessageType::kReleaseReply, "RELEASE_REPLY"},
    {MessageType::kPrefetch, "PREFETCH"},
    {MessageType::kPrefetchReply, "PREFETCH_REPLY"},
    {MessageType::kLookup, "LOOKUP"},
    {MessageType::kLookupReply, "LOOKUP_REPLY"},
    {MessageType::kPin, "PIN"},
    {MessageType::kPinReply, "PIN_REPLY"},
    {MessageType::kStats, "STATS"},
    {MessageType::kStatsReply, "STATS_REPLY"},
    {MessageType::kWorkspace, "WORKSPACE"},
    {MessageType::kWorkspaceReply, "WORKSPACE_REPLY"},
    {MessageType::kWorkspaceClose, "WORKSPACE_CLOSE"},
    {MessageType::kAttend, "ATTEND"},
    {MessageType::kAttendReply, "ATTEND_REPLY"},
    {MessageType::kAttendScaled, "ATTEND_SCALED"},
    {MessageType::kPing, "PING"},
    {MessageType::kPong, "PONG"},
    {MessageType::kError, "ERROR"},
    {MessageType::kDevices, "DEVICES"},
    {MessageType::kDevicesReply, "DEVICES_REPLY"},
    {MessageType::kAdminRequest, "ADMIN_REQUEST"},
    {MessageType::kAdminProgress, "ADMIN_PROGRESS"},
    {MessageType::kAdminReply, "ADMIN_REPLY"},
});

}  // namespace

std::string_view MessageTypeName(uint16_t type) {
  const auto* const found =
      std::ranges::find(kNames, static_cast<MessageType>(type), &NamedType::type);
  return found == kNames.end() ? "unknown" : found->name;
}

}  // namespace kvtier::wire
