// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/replies.h"

#include <fmt/format.h>

namespace kvtier {

// A request without an id has no place for an answer. The client could not learn that it failed and
// would go on with a wrong picture of its blocks, so that the session ends instead.
void Replies::Refuse(const Call& call, const Error& error) {
  log_.Debug("session.refused", "session {}: {}", session_.value, error.ToString());
  if (call.request_id == 0) return connection_.CloseWith(error);
  counters_.CountRefusal(error);
  connection_.Send(call.request_id, wire::ErrorReply{error});
}

void Replies::Fail(wire::MessageType type, const Call& call, const Error& error) {
  trace_.End(type, call.request_id, /*failed=*/true);
  if (!ended_) Refuse(call, error);
}

Status Replies::After(const std::function<void(std::function<void(Status)>)>& when,
                      wire::MessageType type, const Call& call, std::function<Status()> work) {
  struct Wait {
    std::optional<Status> within_call;
    bool over = false;  // the call
  };
  const auto wait = std::make_shared<Wait>();
  when(gate_.WhileOpen([this, wait, type, call, work = std::move(work)](const Status& came) {
    if (!wait->over) {
      wait->within_call = came ? work() : came;
      return;
    }
    connection_.Resume();
    if (ended_) return;
    const Status done = came ? work() : came;
    if (!done) Fail(type, call, done.error());
  }));
  if (wait->within_call) return *wait->within_call;
  wait->over = true;
  connection_.Pause();
  return {};
}

Error EmptyRequest() {
  return {ErrorCode::kInvalidArgument, "empty_request", "the message names no block"};
}

Status CheckCount(const ServerConfig& config, size_t count, const char* reason) {
  if (count <= config.max_hashes_per_call) return {};
  return MakeError(
      ErrorCode::kLimitExceeded, reason,
      fmt::format("{} in one call, {} are allowed", count, config.max_hashes_per_call));
}

Status CheckHashes(const ServerConfig& config, std::span<const BlockHash> hashes) {
  if (hashes.empty()) return tl::unexpected(EmptyRequest());
  return CheckCount(config, hashes.size(), "too_many_hashes");
}

}  // namespace kvtier
