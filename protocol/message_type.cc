#include "protocol/message_type.h"

namespace kvtier::wire {

std::string_view MessageTypeName(uint16_t type) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::kHello:
      return "HELLO";
    case MessageType::kHelloReply:
      return "HELLO_REPLY";
    case MessageType::kRegisterModel:
      return "REGISTER_MODEL";
    case MessageType::kRegisterModelReply:
      return "REGISTER_MODEL_REPLY";
    case MessageType::kAttach:
      return "ATTACH";
    case MessageType::kAttachReply:
      return "ATTACH_REPLY";
    case MessageType::kAcquire:
      return "ACQUIRE";
    case MessageType::kAcquireReply:
      return "ACQUIRE_REPLY";
    case MessageType::kAcquireCounted:
      return "ACQUIRE_COUNTED";
    case MessageType::kAcquireCountedReply:
      return "ACQUIRE_COUNTED_REPLY";
    case MessageType::kLoadProgress:
      return "LOAD_PROGRESS";
    case MessageType::kCommit:
      return "COMMIT";
    case MessageType::kCommitReply:
      return "COMMIT_REPLY";
    case MessageType::kRelease:
      return "RELEASE";
    case MessageType::kReleaseReply:
      return "RELEASE_REPLY";
    case MessageType::kPrefetch:
      return "PREFETCH";
    case MessageType::kPrefetchReply:
      return "PREFETCH_REPLY";
    case MessageType::kLookup:
      return "LOOKUP";
    case MessageType::kLookupReply:
      return "LOOKUP_REPLY";
    case MessageType::kPin:
      return "PIN";
    case MessageType::kPinReply:
      return "PIN_REPLY";
    case MessageType::kStats:
      return "STATS";
    case MessageType::kStatsReply:
      return "STATS_REPLY";
    case MessageType::kWorkspace:
      return "WORKSPACE";
    case MessageType::kWorkspaceReply:
      return "WORKSPACE_REPLY";
    case MessageType::kAttend:
      return "ATTEND";
    case MessageType::kAttendReply:
      return "ATTEND_REPLY";
    case MessageType::kPing:
      return "PING";
    case MessageType::kPong:
      return "PONG";
    case MessageType::kError:
      return "ERROR";
    case MessageType::kDevices:
      return "DEVICES";
    case MessageType::kDevicesReply:
      return "DEVICES_REPLY";
    case MessageType::kAdminRequest:
      return "ADMIN_REQUEST";
    case MessageType::kAdminProgress:
      return "ADMIN_PROGRESS";
    case MessageType::kAdminReply:
      return "ADMIN_REPLY";
  }
  return "unknown";
}

}  // namespace kvtier::wire
