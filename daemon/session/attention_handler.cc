// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/attention_handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvtier {

Result<const AttachedPool*> AttentionHandler::FindAttended(PoolId pool) const {
  if (service_ == nullptr) return MakeError(ErrorCode::kUnsupported, "attend_off");
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const attached, pools_.FindPool(pool));
  KVT_RETURN_IF_ERROR(service_->CheckReady(attached->device));
  return attached;
}

Status AttentionHandler::OnWorkspace(const Call& call, const wire::Workspace& request) {
  if (service_ == nullptr) return MakeError(ErrorCode::kUnsupported, "attend_off");
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const attached, pools_.FindPool(request.pool));
  // Jobs keep what they use; nothing else needs the earlier one, and its bytes may be needed.
  workspaces_.erase(request.number);
  return replies_.After(
      [service = service_, device = attached->device](std::function<void(Status)> ready) {
        service->WhenPrepared(device, [service, ready = std::move(ready)] {
          service->WhenReturned([ready] { ready({}); });
        });
      },
      wire::MessageType::kWorkspace, call,
      [this, call, request] { return OpenWorkspace(call, request); });
}

Status AttentionHandler::OpenWorkspace(const Call& call, const wire::Workspace& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const attached, FindAttended(request.pool));
  // The bytes count against the tenant's share until the last owner of the memory has dropped it,
  // so that a client cannot take more by closing workspaces whose jobs still run.
  KVT_ASSIGN_OR_RETURN(std::shared_ptr<DevicePool> memory,
                       service_->CreateWorkspace(attached->device, client_.tenant, request.bytes));
  DevicePool* const zeroed = memory.get();
  // Before it is all zeros, an ATTEND could read what an earlier owner left there.
  return replies_.After(
      [zeroed](std::function<void(Status)> ready) {
        zeroed->WhenReady([ready = std::move(ready)] { ready({}); });
      },
      wire::MessageType::kWorkspace, call,
      [this, call, number = request.number,
       shared = SharedWorkspace{std::move(memory), attached->device}]() -> Status {
        workspaces_[number] = shared;
        replies_.End(wire::MessageType::kWorkspace, call);
        replies_.connection().SendWithDescriptors(
            call.request_id,
            wire::WorkspaceReply{.bytes = shared.memory->bytes(),
                                 .device_kind = devices_.devices[shared.device].kind},
            {shared.memory->shareable_fd()}, shared.memory);
        return {};
      });
}

Status AttentionHandler::OnWorkspaceClose(const Call&, const wire::WorkspaceClose& request) {
  // Work being computed there keeps it until then.
  workspaces_.erase(request.number);
  return {};
}

Result<std::shared_ptr<DevicePool>> AttentionHandler::FindWorkspace(
    const wire::Attend& request, const AttachedPool& attached) const {
  // Numbers are the client's own: they name only workspaces of this session.
  const auto found = workspaces_.find(request.workspace);
  if (found == workspaces_.end()) {
    return MakeError(ErrorCode::kNotFound, "unknown_workspace",
                     fmt::format("the session has no workspace {}", request.workspace));
  }
  // A kernel that touches another GPU's memory without access to it breaks the CUDA context, and
  // with it the use of that GPU for every client.
  if (found->second.device != attached.device) {
    return MakeError(ErrorCode::kInvalidArgument, "workspace_other_device",
                     fmt::format("the workspace is on device {}, the pool on {}",
                                 found->second.device, attached.device));
  }
  return found->second.memory;
}

Status AttentionHandler::OnAttend(const Call& call, const wire::Attend& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const attached, FindAttended(request.pool));
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DevicePool> workspace,
                       FindWorkspace(request, *attached));
  // Only blocks that this session holds and whose bytes have arrived may be read: a handle of
  // another tenant's block, or a stale one, is refused here.
  KVT_ASSIGN_OR_RETURN(const DevicePool* const pool,
                       cache_.ReadableMemory(client_.session, request.pool, request.blocks));
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<AttentionJob> job,
                       PlanAttend(request, attached->kv_group(),
                                  {.pool = pool->data(),
                                   .workspace = workspace->data(),
                                   .workspace_bytes = workspace->bytes()}));
  KVT_RETURN_IF_ERROR(service_->Check(attached->device, *job));
  attends_.push_back(job);
  if (attends_.size() == kMaxAttendsInFlight) replies_.connection().Pause();
  service_->Run(
      attached->device, client_.tenant, job,
      gate_.WhileOpen([this, call, job = job.get(), workspace](Result<uint64_t> compute_ns) {
        OnAttended(call, job, std::move(compute_ns));
      }));
  return {};
}

// `job` is only compared, never dereferenced. The workspace was kept by the callback until here.
void AttentionHandler::OnAttended(const Call& call, const AttentionJob* job,
                                  Result<uint64_t> compute_ns) {
  if (attends_.size() == kMaxAttendsInFlight) replies_.connection().Resume();
  std::erase_if(attends_, [job](const auto& one) { return one.get() == job; });
  if (!compute_ns) return replies_.Fail(wire::MessageType::kAttend, call, compute_ns.error());
  replies_.End(wire::MessageType::kAttend, call);
  replies_.Send(call, wire::AttendReply{*compute_ns});
}

void AttentionHandler::CancelAttends() {
  if (attends_.empty()) return;
  for (const std::shared_ptr<AttentionJob>& job : attends_) job->cancelled = true;
  service_->DropCancelled(client_.tenant);
}

}  // namespace kvtier
