// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/reencode.h"

#include <type_traits>

#include "protocol/frame.h"
#include "protocol/messages.h"

namespace kvtier::wire {
namespace {

template <typename Message>
Result<std::vector<std::byte>> ReencodeAs(const Frame& frame) {
  KVT_ASSIGN_OR_RETURN(const Message message, Decode<Message>(frame.payload));
  std::vector<std::byte> bytes;
  // Only COMMIT, RELEASE and TOKENS give the flag a meaning.
  constexpr bool kFireAndForget = std::is_same_v<Message, Commit> ||
                                  std::is_same_v<Message, Release> ||
                                  std::is_same_v<Message, Tokens>;
  Encode(message, frame.request_id, &bytes, kFireAndForget ? frame.flags : 0);
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
  return ReencodeAsOneOf<Hello, HelloReply, RegisterModel, RegisterModelReply, Devices,
                         DevicesReply, Attach, AttachReply, Acquire, AcquireReply, LoadProgress,
                         Commit, CommitReply, Release, ReleaseReply, Prefetch, PrefetchReply,
                         Lookup, LookupReply, Pin, PinReply, Hint, HintReply, Stats, StatsReply,
                         Ping, Pong, ErrorReply, AdminRequest, AdminProgress, AdminReply, Workspace,
                         WorkspaceReply, WorkspaceClose, Attend, AttendReply, OpenRegion,
                         OpenRegionReply, CloseRegion, CloseRegionReply, Store, Load, TransferDone,
                         KeepMemory, KeepMemoryReply, TakeMemory, TakeMemoryReply, ReleaseMemory,
                         ReleaseMemoryReply, Resume, ResumeReply, Tokens, TokensReply, Detach>(
      frame);
}

}  // namespace kvtier::wire
