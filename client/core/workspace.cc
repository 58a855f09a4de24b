// SPDX-License-Identifier: Apache-2.0
#include "client/core/workspace.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace kvtier::client {
namespace {

// A request's frame without its lists, rounded up.
constexpr uint64_t kFixedRequestBytes = 128;
constexpr uint64_t kItemBytes = 8;

}  // namespace

Result<std::unique_ptr<Workspace>> Workspace::Open(std::shared_ptr<const Attachment> attachment,
                                                   uint64_t bytes, Deadline deadline) {
  if (bytes == 0 || bytes > wire::kMaxWorkspaceBytes) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_workspace",
                     fmt::format("{} bytes, at most {}", bytes, wire::kMaxWorkspaceBytes));
  }
  LinkPtr link = attachment->link();
  DaemonSession& session = *link->session;
  const std::optional<uint32_t> number = session.TakeWorkspaceNumber();
  if (!number) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_workspaces",
                     fmt::format("{} are open", wire::kMaxWorkspaces));
  }
  const wire::Workspace request{.pool = link->pool, .number = *number, .bytes = bytes};
  std::unique_ptr<Workspace> workspace(
      new Workspace(std::move(attachment), std::move(link), *number));
  UniqueFd fd;
  KVT_ASSIGN_OR_RETURN(const wire::WorkspaceReply reply,
                       session.channel().Call<wire::WorkspaceReply>(
                           request, deadline,
                           {.on_reply = [&](const wire::WorkspaceReply& r) -> Status {
                              if (r.bytes >= bytes) return {};
                              return MakeError(ErrorCode::kCorrupt, "workspace_too_small");
                            },
                            .on_cancelled =
                                [&](uint64_t request_id) {
                                  session.CancelWorkspace(request_id, *number);
                                  workspace->number_.reset();
                                }},
                           {&fd, 1}));
  auto mapping = PoolMapping::Map(std::move(fd), 0, reply.bytes, reply.device_kind);
  if (!mapping) {
    workspace->Close();
    return tl::unexpected(std::move(mapping).error());
  }
  workspace->mapping_ = *std::move(mapping);
  return workspace;
}

void Workspace::Close() const {
  const wire::WorkspaceClose request{.number = *number_};
  (void)link_->session->channel().GiveBack(request);
}

Workspace::~Workspace() {
  if (number_) link_->session->GiveBackWorkspaceNumber(*number_);
}

Result<uint64_t> Workspace::Attend(wire::Attend attend, Deadline deadline) const {
  attend.pool = link_->pool;
  attend.workspace = *number_;
  const size_t scales = attend.key_scales.size() + attend.value_scales.size();
  const uint64_t items = attend.sequences.size() + attend.blocks.size() + scales;
  const uint64_t limit = link_->session->limits().max_frame_bytes;
  if (attend.sequences.size() > wire::kMaxAttendSequences ||
      attend.blocks.size() > wire::kMaxBlocksPerCall ||
      attend.key_scales.size() > wire::kMaxAttendScales ||
      attend.value_scales.size() > wire::kMaxAttendScales ||
      kFixedRequestBytes + items * kItemBytes > limit) {
    return MakeError(ErrorCode::kLimitExceeded, "frame_too_long",
                     fmt::format("{} sequences, {} blocks and {} scales in one call",
                                 attend.sequences.size(), attend.blocks.size(), scales));
  }
  KVT_ASSIGN_OR_RETURN(const wire::AttendReply reply,
                       link_->session->channel().Call<wire::AttendReply>(attend, deadline));
  return reply.compute_ns;
}

}  // namespace kvtier::client
