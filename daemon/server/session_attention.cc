// What a session does for clients that launch no kernels of their own.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/attention/attend_plan.h"
#include "daemon/server/session.h"

namespace kvtier {

Result<const Session::AttachedPool*> Session::FindAttended(PoolId pool) const {
  if (services_.attention == nullptr) return MakeError(ErrorCode::kUnsupported, "attend_off");
  KVT_RETURN_IF_ERROR(services_.attention->CheckReady());
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const attached, FindPool(pool));
  if (attached->device == 0) return attached;
  return MakeError(
      ErrorCode::kUnsupported, "attend_other_device",
      fmt::format("attention is computed on device 0, the pool is on {}", attached->device));
}

Status Session::OnWorkspace(const Call& call, const wire::Workspace& request) {
  KVT_RETURN_IF_ERROR(FindAttended(request.pool));
  // Jobs keep what they use; nobody else needs the earlier one, and its bytes may be needed.
  workspaces_.erase(request.number);
  KVT_ASSIGN_OR_RETURN(std::shared_ptr<DevicePool> memory,
                       services_.attention->CreateWorkspace(request.bytes));
  workspaces_[request.number] = memory;
  connection_.SendWithDescriptor(
      call.request_id,
      wire::WorkspaceReply{.bytes = memory->bytes(),
                           .device_kind = services_.devices->devices.front().kind},
      memory->shareable_fd(), memory);
  return {};
}

Result<std::shared_ptr<AttentionJob>> Session::JobOf(const wire::Attend& request,
                                                     const AttachedPool& attached) const {
  const auto workspace = workspaces_.find(request.workspace);
  if (workspace == workspaces_.end()) {
    return MakeError(ErrorCode::kNotFound, "unknown_workspace",
                     fmt::format("the session has no workspace {}", request.workspace));
  }
  KVT_ASSIGN_OR_RETURN(const DevicePool* const pool,
                       services_.cache->ReadableMemory(id_, request.pool, request.blocks));
  KVT_ASSIGN_OR_RETURN(std::shared_ptr<AttentionJob> job,
                       PlanAttend(request, attached.model->record,
                                  {.pool = pool->data(),
                                   .workspace = workspace->second->data(),
                                   .workspace_bytes = workspace->second->bytes()},
                                  services_.attention->max_products()));
  KVT_RETURN_IF_ERROR(services_.attention->Check(*job));
  return job;
}

Status Session::OnAttend(const Call& call, const wire::Attend& request) {
  KVT_ASSIGN_OR_RETURN(const AttachedPool* const attached, FindAttended(request.pool));
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<AttentionJob> job, JobOf(request, *attached));
  attends_.push_back(job);
  if (attends_.size() == kMaxAttendsInFlight) connection_.Pause();
  services_.attention->Run(
      job, [weak = weak_from_this(), call, job = job.get(),
            workspace = workspaces_.at(request.workspace)](Result<uint64_t> compute_ns) {
        const std::shared_ptr<Session> session = weak.lock();
        if (session) session->OnAttended(call, job, std::move(compute_ns));
      });
  return {};
}

void Session::OnAttended(const Call& call, const AttentionJob* job, Result<uint64_t> compute_ns) {
  if (attends_.size() == kMaxAttendsInFlight) connection_.Resume();
  std::erase_if(attends_, [job](const auto& one) { return one.get() == job; });
  trace_.End(wire::MessageType::kAttend, call.request_id, !compute_ns);
  if (ended_) return;
  if (!compute_ns) return Refuse(call, compute_ns.error());
  Reply(call, wire::AttendReply{*compute_ns});
}

void Session::CancelAttends() {
  for (const std::shared_ptr<AttentionJob>& job : attends_) job->cancelled = true;
}

}  // namespace kvtier
