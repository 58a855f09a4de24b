// SPDX-License-Identifier: Apache-2.0
#include "client/core/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "client/core/link_group.h"

namespace kvtier::client {

Status ConnectionOptions::Validate() const {
  const auto positive = [](std::string_view field, int64_t value) -> Status {
    if (value > 0) return {};
    return MakeError(ErrorCode::kInvalidArgument, "bad_option",
                     fmt::format("{} is {}, must be positive", field, value));
  };
  if (client_name.size() > wire::kMaxClientNameBytes) {
    return MakeError(
        ErrorCode::kInvalidArgument, "client_name_too_long",
        fmt::format("{} bytes, at most {}", client_name.size(), wire::kMaxClientNameBytes));
  }
  KVT_RETURN_IF_ERROR(positive("connect_timeout_ms", connect_timeout_ms));
  KVT_RETURN_IF_ERROR(positive("request_timeout_ms", request_timeout_ms));
  if (resume_wait_ms < 0) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_option",
                     fmt::format("resume_wait_ms is {}, must not be negative", resume_wait_ms));
  }
  if (reconnect_min_ms >= 0 && reconnect_max_ms < reconnect_min_ms) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_option",
                     fmt::format("reconnect_max_ms {} is below reconnect_min_ms {}",
                                 reconnect_max_ms, reconnect_min_ms));
  }
  return {};
}

Connection::Connection(std::string socket_path, ConnectionOptions options)
    : socket_path_(std::move(socket_path)), options_(std::move(options)) {}

Status Connection::Connect() {
  {
    const std::lock_guard lock(mutex_);
    connecting_ = true;
  }
  const Result<std::shared_ptr<DaemonSession>> session = TryConnect();
  if (session || MayWait(session.error())) return {};
  return tl::unexpected(session.error());
}

Result<std::shared_ptr<DaemonSession>> Connection::GetSession() {
  {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<DaemonSession> session = session_;
    lock.unlock();
    if (session && session->channel().Poll()) return session;
    lock.lock();
    // Another thread may have replaced it meanwhile.
    if (session_ && session_ != session) return session_;
    if (session && options_.reconnect_min_ms < 0) {
      return MakeError(ErrorCode::kUnavailable, "connection_lost", "reconnecting is off");
    }
    if (connecting_ || std::chrono::steady_clock::now() < next_try_) {
      return MakeError(ErrorCode::kUnavailable, connecting_ ? "reconnecting" : "reconnect_pause",
                       last_failure_);
    }
    connecting_ = true;
  }
  Result<std::shared_ptr<DaemonSession>> session = TryConnect();
  if (session) return session;
  return MakeError(ErrorCode::kUnavailable, session.error().reason, session.error().context);
}

Result<std::shared_ptr<DaemonSession>> Connection::WaitForSession(Deadline deadline) {
  // A daemon that is started anew is there within some tenths of a second.
  constexpr std::chrono::milliseconds kPause{10};
  while (true) {
    Result<std::shared_ptr<DaemonSession>> session = GetSession();
    if (session || options_.reconnect_min_ms < 0 || std::chrono::steady_clock::now() >= deadline) {
      return session;
    }
    std::this_thread::sleep_until(std::min(deadline, std::chrono::steady_clock::now() + kPause));
    // The pause is for calls that would otherwise try at once, each of them.
    const std::lock_guard lock(mutex_);
    next_try_ = {};
  }
}

Result<std::shared_ptr<DaemonSession>> Connection::TryConnect() {
  // The next thread may try, also if this one runs out of memory.
  struct Try {
    ~Try() {
      const std::lock_guard lock(connection.mutex_);
      connection.connecting_ = false;
    }
    Connection& connection;
  };
  const Try ends{*this};
  Result<std::shared_ptr<DaemonSession>> session = DaemonSession::Open(
      socket_path_, options_.client_name, DeadlineIn(options_.connect_timeout_ms),
      options_.request_timeout_ms, &async_errors_);
  const std::lock_guard lock(mutex_);
  if (session) {
    replaced_since_flush_ |= session_ != nullptr;
    session_ = *session;
    wire_models_.clear();
    pause_ms_ = 0;
    next_try_ = {};
    last_failure_.clear();
    return session;
  }
  pause_ms_ = pause_ms_ == 0 ? std::max<int64_t>(options_.reconnect_min_ms, 0)
                             : std::min(pause_ms_ * 2, options_.reconnect_max_ms);
  next_try_ = DeadlineIn(pause_ms_);
  last_failure_ = session.error().ToString();
  return session;
}

bool Connection::IsConnected() {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<DaemonSession> session = session_;
  lock.unlock();
  return session && session->channel().Poll();
}

Status Connection::Flush() {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<DaemonSession> session = session_;
  const bool replaced = std::exchange(replaced_since_flush_, false);
  lock.unlock();
  if (!session || replaced) {
    return MakeError(ErrorCode::kUnavailable, "connection_lost", "earlier messages may be lost");
  }
  // The daemon answers in order.
  const Result<wire::Pong> pong =
      session->channel().Call<wire::Pong>(wire::Ping{}, RequestDeadline());
  return pong ? Status() : tl::unexpected(pong.error());
}

Result<std::vector<wire::DevicesReply::Device>> Connection::DevicesOf(
    DaemonSession& session) const {
  KVT_ASSIGN_OR_RETURN(wire::DevicesReply reply, session.channel().Call<wire::DevicesReply>(
                                                     wire::Devices{}, RequestDeadline()));
  return std::move(reply.devices);
}

Result<uint32_t> Connection::RegisterModel(ModelRecord record) {
  std::sort(record.extra.begin(), record.extra.end());
  KVT_RETURN_IF_ERROR(record.Validate());
  Model model{.record = std::move(record)};
  model.fingerprint = model.record.Fingerprint();
  for (uint32_t i = 0; i < model.record.groups.size(); ++i) {
    model.groups.push_back({model.record.GroupFingerprint(i), model.record.groups[i].BlockBytes()});
  }
  const Result<std::shared_ptr<DaemonSession>> session = GetSession();
  const Result<wire::ModelId> id =
      session ? RegisterIn(session->get(), model) : tl::unexpected(session.error());
  // The daemon is told by ModelIn, when there is one.
  if (!id && !MayWait(id.error())) return tl::unexpected(id.error());

  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(models_.begin(), models_.end(), [&](const Model& known) {
    return known.fingerprint == model.fingerprint;
  });
  const auto number = static_cast<uint32_t>(it - models_.begin());
  if (it == models_.end()) models_.push_back(std::move(model));
  if (id && *session == session_) wire_models_[number] = *id;
  return number;
}

Result<wire::ModelId> Connection::RegisterIn(DaemonSession* session, const Model& model) {
  const wire::RegisterModel request{.record = model.record};
  // A daemon that understands the record otherwise would lay out the pool otherwise.
  const auto check = [&](const wire::RegisterModelReply& reply) -> Status {
    if (reply.groups == model.groups) return {};
    return MakeError(ErrorCode::kCorrupt, "model_mismatch",
                     fmt::format("{} groups are not the {} of the record", reply.groups.size(),
                                 model.groups.size()));
  };
  KVT_ASSIGN_OR_RETURN(const wire::RegisterModelReply reply,
                       session->channel().Call<wire::RegisterModelReply>(request, RequestDeadline(),
                                                                         {.on_reply = check}));
  return reply.model;
}

Result<Connection::Model> Connection::GetModel(uint32_t model) const {
  const std::lock_guard lock(mutex_);
  if (model >= models_.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_model",
                     fmt::format("model {} of {}", model, models_.size()));
  }
  return models_[model];
}

Result<wire::ModelId> Connection::ModelIn(const std::shared_ptr<DaemonSession>& session,
                                          uint32_t model) {
  KVT_ASSIGN_OR_RETURN(const Model known, GetModel(model));
  {
    const std::lock_guard lock(mutex_);
    const auto it = wire_models_.find(model);
    if (session == session_ && it != wire_models_.end()) return it->second;
  }
  KVT_ASSIGN_OR_RETURN(const wire::ModelId id, RegisterIn(session.get(), known));
  const std::lock_guard lock(mutex_);
  if (session == session_) wire_models_[model] = id;
  return id;
}

std::shared_ptr<LinkGroup> Connection::LinksTo(uint64_t generation) {
  const std::lock_guard lock(mutex_);
  std::erase_if(link_groups_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<LinkGroup>& known = link_groups_[generation];
  std::shared_ptr<LinkGroup> group = known.lock();
  if (!group) known = group = std::make_shared<LinkGroup>(this);
  return group;
}

}  // namespace kvtier::client
