// SPDX-License-Identifier: Apache-2.0
#include "client/core/admin_call.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "client/core/channel.h"
#include "client/core/unix_socket.h"
#include "protocol/messages.h"

namespace kvtier::client {
namespace {

// What has come from the daemon; guarded by the channel's lock.
struct Inbox {
  std::vector<std::string> progress;
  std::optional<Result<std::string>> reply;

  [[nodiscard]] Status Take(const wire::Frame& frame) {
    switch (static_cast<wire::MessageType>(frame.type)) {
      case wire::MessageType::kAdminProgress: {
        KVT_ASSIGN_OR_RETURN(wire::AdminProgress message,
                             wire::AdminProgress::Decode(frame.payload));
        progress.push_back(std::move(message.json));
        return {};
      }
      case wire::MessageType::kAdminReply: {
        KVT_ASSIGN_OR_RETURN(wire::AdminReply message, wire::AdminReply::Decode(frame.payload));
        reply = std::move(message.json);
        return {};
      }
      case wire::MessageType::kError: {
        KVT_ASSIGN_OR_RETURN(wire::ErrorReply message, wire::ErrorReply::Decode(frame.payload));
        reply = tl::unexpected(std::move(message.error));
        return {};
      }
      default:
        return MakeError(ErrorCode::kCorrupt, "unexpected_message",
                         fmt::format("type {}", frame.type));
    }
  }
};

}  // namespace

Result<std::string> CallAdmin(const std::string& socket_path, const std::string& request_json,
                              int64_t timeout_ms,
                              const std::function<void(const std::string& json)>& progress) {
  if (request_json.size() > wire::kMaxAdminRequestTextBytes) {
    return MakeError(
        ErrorCode::kLimitExceeded, "text_too_long",
        fmt::format("{} bytes, at most {}", request_json.size(), wire::kMaxAdminRequestTextBytes));
  }
  KVT_ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnixSocket(socket_path, DeadlineIn(timeout_ms)));
  Inbox inbox;
  Channel channel(std::move(socket), wire::kMaxAdminReplyFrameBytes,
                  [&](const wire::Frame& frame) { return inbox.Take(frame); });
  const wire::AdminRequest request{.json = request_json};
  KVT_RETURN_IF_ERROR(channel.Post(
      [&](uint64_t request_id, std::vector<std::byte>* out) { request.Encode(request_id, out); },
      DeadlineIn(timeout_ms)));
  while (true) {
    const Status waited = channel.WaitUntil([&] { return inbox.reply || !inbox.progress.empty(); },
                                            DeadlineIn(timeout_ms));
    std::unique_lock lock = channel.Lock();
    const std::vector<std::string> messages = std::exchange(inbox.progress, {});
    const std::optional<Result<std::string>> reply = inbox.reply;
    lock.unlock();
    for (const std::string& json : messages) {
      if (progress) progress(json);
    }
    if (reply) return *reply;
    KVT_RETURN_IF_ERROR(waited);
  }
}

}  // namespace kvtier::client
