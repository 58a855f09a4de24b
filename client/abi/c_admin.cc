// SPDX-License-Identifier: Apache-2.0
// The C ABI: administration, and what belongs to no object.

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/acquired.h"
#include "base/user_paths.h"
#include "client/abi/c_common.h"
#include "client/core/channel.h"
#include "client/core/unix_socket.h"
#include "protocol/messages.h"

namespace kvtier::client {
namespace {

// kvtier.h stands alone, and so repeats the list of base/acquired.h.
#define KVT_X(enumerator, c_name, name, meaning) \
  static_assert(KVT_MISS_##c_name == static_cast<int>(MissReason::enumerator));
KVT_MISS_REASONS(KVT_X)
#undef KVT_X
static_assert(KVT_MISS_DISTRUSTED + 1 == kMissReasonCount, "kvtier.h lacks the latest reasons");

// Long enough for any single step of the daemon's that reports nothing.
constexpr int64_t kDefaultAdminTimeoutMs = 30 * 1000;

// The daemon's messages so far; guarded by the channel's lock.
struct Inbox {
  std::vector<std::string> progress;
  std::optional<Result<std::string>> reply;

  // Called by the channel with its lock held. Errors: kCorrupt, which ends the connection: a frame
  // that does not decode, or of a type that has no place here.
  [[nodiscard]] Status Take(const wire::Frame& frame) {
    switch (static_cast<wire::MessageType>(frame.type)) {
      case wire::MessageType::kAdminProgress: {
        KVT_ASSIGN_OR_RETURN(wire::AdminProgress message,
                             wire::Decode<wire::AdminProgress>(frame.payload));
        progress.push_back(std::move(message.json));
        return {};
      }
      case wire::MessageType::kAdminReply: {
        KVT_ASSIGN_OR_RETURN(wire::AdminReply message,
                             wire::Decode<wire::AdminReply>(frame.payload));
        reply = std::move(message.json);
        return {};
      }
      case wire::MessageType::kError: {
        KVT_ASSIGN_OR_RETURN(wire::ErrorReply message,
                             wire::Decode<wire::ErrorReply>(frame.payload));
        reply = tl::unexpected(std::move(message.error));
        return {};
      }
      default:
        return MakeError(ErrorCode::kCorrupt, "unexpected_message",
                         fmt::format("type {}", frame.type));
    }
  }
};

// Sends `request_json` and returns the reply's text; `progress` sees the messages in between, in
// order, on this thread. Waits up to `timeout_ms` for each message. Errors: those of
// ConnectUnixSocket; the daemon's refusal; kUnavailable; kTimeout; kLimitExceeded "text_too_long".
Result<std::string> CallAdmin(const std::string& socket_path, const std::string& request_json,
                              int64_t timeout_ms,
                              const std::function<void(const std::string& json)>& progress) {
  if (request_json.size() > wire::kMaxAdminRequestTextBytes) {
    return MakeError(
        ErrorCode::kLimitExceeded, "text_too_long",
        fmt::format("{} bytes, at most {}", request_json.size(), wire::kMaxAdminRequestTextBytes));
  }
  const std::string path = socket_path.empty() ? AdminSocketBeside(FindSocket()) : socket_path;
  KVT_ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnixSocket(path, DeadlineIn(timeout_ms)));
  Inbox inbox;
  Channel channel(std::move(socket), wire::kMaxAdminReplyFrameBytes, timeout_ms,
                  {.sink = [&](const wire::Frame& frame) { return inbox.Take(frame); }});
  const wire::AdminRequest request{.json = request_json};
  KVT_RETURN_IF_ERROR(channel.Post(request));
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

// The reply is allocated with malloc, because callers free it with kvt_string_free, which may lie
// in another library than their own allocator. It is null after every error.
Status Admin(const char* socket_path, const char* request_json, int64_t timeout_ms,
             kvt_admin_progress progress, void* user, char** reply_json) {
  KVT_RETURN_IF_ERROR(CheckPointer(socket_path, "admin_socket_path"));
  KVT_RETURN_IF_ERROR(CheckPointer(request_json, "request_json"));
  KVT_RETURN_IF_ERROR(CheckPointer(reply_json, "reply_json"));
  *reply_json = nullptr;
  KVT_ASSIGN_OR_RETURN(
      const std::string reply,
      CallAdmin(socket_path, request_json, timeout_ms < 0 ? kDefaultAdminTimeoutMs : timeout_ms,
                [&](const std::string& json) {
                  if (progress != nullptr) progress(user, json.c_str());
                }));
  *reply_json = static_cast<char*>(std::malloc(reply.size() + 1));
  if (*reply_json == nullptr) return MakeError(ErrorCode::kResourceExhausted, "out_of_memory");
  std::memcpy(*reply_json, reply.c_str(), reply.size() + 1);
  return {};
}

}  // namespace

extern "C" {

KVT_API kvt_status kvt_admin(const char* admin_socket_path, const char* request_json,
                             int64_t timeout_ms, kvt_admin_progress progress, void* user,
                             char** reply_json) {
  return Guard([&] {
    return Admin(admin_socket_path, request_json, timeout_ms, progress, user, reply_json);
  });
}

// The counterpart of the malloc in Admin; null is accepted.
KVT_API void kvt_string_free(char* text) { std::free(text); }

KVT_API const char* kvt_version(void) { return KVT_VERSION_TEXT; }

// Never null, and never freed: the names are constants of the library.
KVT_API const char* kvt_status_name(kvt_status status) {
  if (status == KVT_OK) return "ok";
  // The names are literals, and so end with a zero.
  return ErrorCodeName(static_cast<ErrorCode>(status)).data();
}

KVT_API const char* kvt_miss_name(kvt_miss miss) {
  if (miss == KVT_MISS_UNAVAILABLE) return "unavailable";
  // A daemon of a later minor version may have more reasons.
  if (miss >= kMissReasonCount) return "other";
  return kMissReasonTexts[miss].name.data();
}

}  // extern "C"

}  // namespace kvtier::client
