// SPDX-License-Identifier: Apache-2.0
#include "client/core/pool.h"

#include <fmt/format.h>

#include <utility>

namespace kvtier::client {
Result<std::unique_ptr<Pool>> Pool::Open(Connection* connection, uint32_t model, uint32_t group,
                                         uint32_t device, uint64_t pool_bytes) {
  KVT_ASSIGN_OR_RETURN(const Connection::Model known, connection->GetModel(model));
  if (group >= known.record.groups.size()) {
    return MakeError(ErrorCode::kNotFound, "unknown_group",
                     fmt::format("group {} of {}", group, known.record.groups.size()));
  }
  std::unique_ptr<Pool> pool(new Pool(connection, model, group, device, pool_bytes,
                                      known.record.groups[group].BlockBytes()));
  const Result<std::shared_ptr<DaemonSession>> session = connection->GetSession();
  const std::lock_guard lock(pool->attach_mutex_);
  const Status attached = session ? pool->Attach(*session) : tl::unexpected(session.error());
  if (attached) return pool;
  if (!connection->MayWait(attached.error())) return tl::unexpected(attached.error());
  pool->device_.RememberCurrent();
  return pool;
}

Result<std::shared_ptr<const Attachment>> Pool::Attached() {
  // One that stands, or can be resumed, is the attachment still.
  Result<std::shared_ptr<const Attachment>> latest = Latest();
  const Result<LinkPtr> link = latest ? (*latest)->Live() : tl::unexpected(latest.error());
  if (link) return latest;
  if (link.error().code == ErrorCode::kTimeout) {
    return MakeError(ErrorCode::kUnavailable, "resume_timeout", link.error().ToString());
  }
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session, connection_->GetSession());
  if (IsAttachedTo(session)) return Latest();
  const std::unique_lock lock(attach_mutex_, connection_->RequestDeadline());
  if (!lock) return MakeError(ErrorCode::kUnavailable, "reattach_failed", "another thread tries");
  if (IsAttachedTo(session)) return Latest();
  if (const Status status = Attach(session); !status) {
    TellRefusal(status.error());
    return MakeError(ErrorCode::kUnavailable, "reattach_failed", status.error().ToString());
  }
  refusal_.clear();
  return Latest();
}

void Pool::TellRefusal(const Error& error) {
  if (error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout) return;
  if (std::exchange(refusal_, error.reason) == error.reason) return;
  connection_->async_errors().Add({.code = error.code, .reason = error.reason});
}

Result<std::shared_ptr<const Attachment>> Pool::AttachedOrLatest() {
  Result<std::shared_ptr<const Attachment>> attached = Attached();
  const Result<std::shared_ptr<const Attachment>> latest = Latest();
  return latest && !attached ? latest : attached;
}

Result<std::shared_ptr<const Attachment>> Pool::AttachedForOpening() {
  Result<std::shared_ptr<const Attachment>> attached = Attached();
  const Result<std::shared_ptr<const Attachment>> latest = Latest();
  if (attached || !latest || !(*latest)->MayOutlive()) return attached;
  std::unique_lock lock(mutex_);
  if (std::exchange(waited_for_, (*latest)->link()) != (*latest)->link()) {
    wait_until_ = DeadlineIn(connection_->options().resume_wait_ms);
  }
  const Deadline until = wait_until_;
  lock.unlock();
  if (std::chrono::steady_clock::now() >= until) return attached;
  return connection_->WaitForSession(until) ? Attached() : attached;
}

Status Pool::Attach(const std::shared_ptr<DaemonSession>& session) {
  KVT_ASSIGN_OR_RETURN(const Connection::Model model, connection_->GetModel(model_));
  KVT_ASSIGN_OR_RETURN(const wire::ModelId wire_model, connection_->ModelIn(session, model_));
  DeviceChoice choice = device_;
  KVT_ASSIGN_OR_RETURN(const uint32_t device, choice.In(*connection_, *session));
  const wire::Attach request{
      .model = wire_model, .group = group_, .device = device, .pool_bytes = pool_bytes_};
  const std::shared_ptr<PoolMapping> known = latest_ ? latest_->mapping() : nullptr;
  KVT_ASSIGN_OR_RETURN(std::shared_ptr<const Attachment> attachment,
                       Attachment::Open(PoolLink::Target{connection_, model_, request, choice},
                                        session, model.record, known));
  device_ = std::move(choice);
  const std::lock_guard lock(mutex_);
  latest_ = std::move(attachment);
  mappings_.emplace(latest_->id(), latest_->mapping());
  if (known == latest_->mapping()) return {};
  // The last stale mapping is left as it is, since other threads may still read from it.
  for (const auto& [id, mapping] : mappings_) {
    if (mapping != known && mapping != latest_->mapping()) mapping->Empty();
  }
  return {};
}

Result<std::shared_ptr<const Attachment>> Pool::Latest() const {
  const std::lock_guard lock(mutex_);
  if (latest_) return latest_;
  return MakeError(ErrorCode::kUnavailable, "never_attached", "no daemon has been there yet");
}

bool Pool::IsAttachedTo(const std::shared_ptr<DaemonSession>& session) const {
  const std::lock_guard lock(mutex_);
  return latest_ && latest_->link()->session == session;
}

Result<std::shared_ptr<PoolMapping>> Pool::MappingOf(uint64_t attachment, uint32_t block) const {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(attachment);
  if (found == mappings_.end()) {
    return MakeError(ErrorCode::kStaleHandle, "attachment_dropped",
                     fmt::format("attachment {}", attachment));
  }
  if (block < found->second->bytes() / block_bytes_) return found->second;
  return MakeError(ErrorCode::kInvalidArgument, "block_outside_pool",
                   fmt::format("block {}", block));
}

void Pool::SetComputeCost(const ComputeCost& cost) {
  const std::lock_guard lock(mutex_);
  compute_cost_ = cost;
}

ComputeCost Pool::compute_cost() const {
  const std::lock_guard lock(mutex_);
  return compute_cost_;
}

void Pool::UnmapDevice() {
  const std::lock_guard lock(mutex_);
  for (const auto& [attachment, mapping] : mappings_) mapping->Unmap();
}

void Pool::DropStaleMappings() {
  const std::lock_guard lock(mutex_);
  std::erase_if(mappings_, [this](const auto& item) { return item.second != latest_->mapping(); });
}

}  // namespace kvtier::client
