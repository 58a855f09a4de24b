// SPDX-License-Identifier: Apache-2.0
#include "client/core/pool.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace kvtier::client {

Result<std::unique_ptr<Pool>> Pool::Open(Connection* connection, uint32_t model, uint32_t device,
                                         uint64_t pool_bytes) {
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, connection->GetSession());
  std::unique_ptr<Pool> pool(new Pool(connection, model, device, pool_bytes));
  const std::lock_guard lock(pool->attach_mutex_);
  KVT_RETURN_IF_ERROR(pool->Attach(session));
  return pool;
}

Result<std::shared_ptr<const Attachment>> Pool::Attached() {
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, connection_->GetSession());
  if (auto latest = Latest(); latest->session() == session) return latest;
  const std::lock_guard lock(attach_mutex_);
  if (auto latest = Latest(); latest->session() == session) return latest;
  if (const Status status = Attach(session); !status) {
    return MakeError(ErrorCode::kUnavailable, "reattach_failed", status.error().ToString());
  }
  return Latest();
}

Result<uint32_t> Pool::DeviceIn(const std::shared_ptr<Session>& session) {
  if (device_ != kAnyDevice) return device_;
  const auto devices = connection_->DevicesOf(*session);
  // A daemon that does not know the call has one device.
  if (!devices && devices.error().code == ErrorCode::kUnsupported) return 0;
  if (!devices) return tl::unexpected(devices.error());
  KVT_ASSIGN_OR_RETURN(const uint32_t device, ChooseDevice(*devices, chosen_, CurrentDeviceUuid));
  if ((*devices)[device].kind == wire::DeviceKind::kCuda) chosen_ = (*devices)[device].uuid;
  return device;
}

Status Pool::Attach(const std::shared_ptr<Session>& session) {
  KVT_ASSIGN_OR_RETURN(const Connection::Model model, connection_->GetModel(model_));
  KVT_ASSIGN_OR_RETURN(const wire::ModelId wire_model, connection_->ModelIn(session, model_));
  KVT_ASSIGN_OR_RETURN(const uint32_t device, DeviceIn(session));
  const wire::Attach request{.model = wire_model, .device = device, .pool_bytes = pool_bytes_};
  const std::shared_ptr<PoolMapping> known = latest_ ? latest_->mapping() : nullptr;
  KVT_ASSIGN_OR_RETURN(
      std::shared_ptr<const Attachment> attachment,
      Attachment::Open(session, request, model.block_bytes, model.record.block_tokens, known,
                       connection_->RequestDeadline()));
  const std::lock_guard lock(mutex_);
  latest_ = std::move(attachment);
  if (known != latest_->mapping()) {
    mappings_.emplace(latest_->id(), latest_->mapping());
    // The last stale mapping is left as it is, for those who still read from it.
    if (mappings_.size() > 2) std::prev(mappings_.end(), 3)->second->Empty();
  }
  return {};
}

std::shared_ptr<const Attachment> Pool::Latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

Result<std::shared_ptr<PoolMapping>> Pool::MappingOf(uint64_t attachment) const {
  const std::lock_guard lock(mutex_);
  const auto next = mappings_.upper_bound(attachment);
  if (next == mappings_.begin() || attachment > latest_->id()) {
    return MakeError(ErrorCode::kStaleHandle, "attachment_dropped",
                     fmt::format("attachment {}", attachment));
  }
  return std::prev(next)->second;
}

void Pool::UnmapDevice() {
  const std::lock_guard lock(mutex_);
  for (const auto& [attachment, mapping] : mappings_) mapping->Unmap();
}

void Pool::DropStaleMappings() {
  const std::lock_guard lock(mutex_);
  mappings_.erase(mappings_.begin(), std::prev(mappings_.end()));
}

}  // namespace kvtier::client
