// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/resp/resp_connection.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <charconv>
#include <memory>

namespace kvtier {
namespace {

constexpr timeval kPatience = {.tv_sec = 1, .tv_usec = 0};

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};

RespReply View(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_ERROR:
      return {.kind = RespReply::Kind::kError, .integer = 0, .text = {reply.str, reply.len}};
    case REDIS_REPLY_INTEGER:
      return {.kind = RespReply::Kind::kInteger, .integer = reply.integer, .text = {}};
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
      return {.kind = RespReply::Kind::kText, .integer = 0, .text = {reply.str, reply.len}};
    default:
      return {};
  }
}

}  // namespace

std::optional<RespEndpoint> RespEndpoint::Parse(std::string_view text) {
  RespEndpoint endpoint;
  if (text.starts_with('/')) {
    endpoint.host = text;
    return endpoint;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  const bool whole = error == std::errc() && end == port.data() + port.size();
  if (!whole || host.empty() || endpoint.port < 1 || endpoint.port > 65535) return std::nullopt;
  endpoint.host = host;
  return endpoint;
}

// Connecting may take its second, so the lock is not held meanwhile.
bool RespConnection::Connect() {
  redisContext* const context =
      endpoint_.port == 0
          ? redisConnectUnixWithTimeout(endpoint_.host.c_str(), kPatience)
          : redisConnectWithTimeout(endpoint_.host.c_str(), endpoint_.port, kPatience);
  if (context == nullptr) return false;
  if (context->err != 0 || redisSetTimeout(context, kPatience) != REDIS_OK) {
    redisFree(context);
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    context_ = context;
    if (interrupted_) ::shutdown(context_->fd, SHUT_RDWR);
  }
  return Authenticate();
}

bool RespConnection::Authenticate() {
  if (endpoint_.password.empty()) return true;
  RespCommand command = {"AUTH"};
  if (!endpoint_.user.empty()) command.emplace_back(endpoint_.user);
  command.emplace_back(endpoint_.password);
  Append(command);
  bool accepted = false;
  const bool answered =
      Next([&](const RespReply& reply) { accepted = reply.kind == RespReply::Kind::kText; });
  return answered && accepted;
}

void RespConnection::Append(const RespCommand& command) {
  std::vector<const char*> words;
  std::vector<size_t> lengths;
  for (const std::string_view word : command) {
    words.push_back(word.data());
    lengths.push_back(word.size());
  }
  // It fails for want of memory only; the connection has an error then, which Next finds.
  (void)redisAppendCommandArgv(context_, static_cast<int>(words.size()), words.data(),
                               lengths.data());
}

bool RespConnection::Next(const std::function<void(const RespReply&)>& answered) {
  void* raw = nullptr;
  if (redisGetReply(context_, &raw) != REDIS_OK || raw == nullptr) return false;
  const std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(raw));
  answered(View(*reply));
  return true;
}

bool RespConnection::Run(const std::vector<RespCommand>& commands,
                         const std::function<void(size_t, const RespReply&)>& answered) {
  if (Interrupted() || (context_ == nullptr && !Connect())) {
    Drop();
    return false;
  }
  for (const RespCommand& command : commands) Append(command);
  for (size_t i = 0; i < commands.size(); ++i) {
    if (Next([&](const RespReply& reply) { answered(i, reply); })) continue;
    Drop();
    return false;
  }
  return true;
}

void RespConnection::Interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (context_ != nullptr) ::shutdown(context_->fd, SHUT_RDWR);
}

bool RespConnection::Interrupted() {
  const std::lock_guard lock(mutex_);
  return interrupted_;
}

void RespConnection::Drop() {
  const std::lock_guard lock(mutex_);
  if (context_ != nullptr) redisFree(context_);
  context_ = nullptr;
}

}  // namespace kvtier
