// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/reencode.h"

#include "protocol/messages.h"

namespace kvtier::wire {
namespace {

template <typename Message>
Result<std::vector<std::byte>> ReencodeAs(const Frame& frame) {
  KVT_ASSIGN_OR_RETURN(const Message message, Message::Decode(frame.payload));
  std::vector<std::byte> bytes;
  if constexpr (requires { message.Encode(uint64_t{}, true, &bytes); }) {
    message.Encode(frame.request_id, (frame.flags & kFlagWantReply) != 0, &bytes);
  } else {
    message.Encode(frame.request_id, &bytes);
  }
  return bytes;
}

template <typename... Messages>
Result<std::vector<std::byte>> ReencodeAsOneOf(const Frame& frame) {
  Result<std::vector<std::byte>> result = MakeError(ErrorCode::kNotFound, "unknown_type");
  const auto try_one = [&]<typename Message>() {
    if (frame.type != static_cast<uint16_t>(Message::kType)) return false;
    result = ReencodeAs<Message>(frame);
    return true;
  };
  (try_one.template operator()<Messages>() || ...);
  return result;
}

}  // namespace

Result<std::vector<std::byte>> Reencode(const Frame& frame) {
  return ReencodeAsOneOf<
      Hello, HelloReply, RegisterModel, RegisterModelReply, Devices, DevicesReply, Attach,
      AttachReply, Acquire, AcquireReply, AcquireCounted, AcquireCountedReply, LoadProgress, Commit,
      CommitReply, Release, ReleaseReply, Prefetch, PrefetchReply, Lookup, LookupReply, Pin,
      PinReply, Stats, StatsReply, Ping, Pong, ErrorReply, AdminRequest, AdminProgress, AdminReply,
      Workspace, WorkspaceReply, WorkspaceClose, Attend, AttendReply, AttendScaled>(frame);
}

}  // namespace kvtier::wire
