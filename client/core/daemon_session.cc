// SPDX-License-Identifier: Apache-2.0
#include "client/core/daemon_session.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/user_paths.h"
#include "client/core/unix_socket.h"

namespace kvtier::client {
namespace {

// Since Linux 6.5; headers may be older than the kernel.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

// Readable, or hung up: for a pidfd, that the process has ended; for a socket, that something has
// come or that its peer has closed it.
bool Stirs(int fd) {
  pollfd waits{fd, POLLIN | POLLRDHUP, 0};
  return ::poll(&waits, 1, 0) > 0;
}

UniqueFd ProcessOf(int socket) {
  int process = -1;
  socklen_t size = sizeof(process);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0)
    return UniqueFd(process);
  ucred peer{};
  size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return {};
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  // The number may have been another process's by then, but not if the peer still held its end.
  return Stirs(socket) ? UniqueFd() : std::move(opened);
}

// How many handles of the latest fire-and-forget calls are remembered.
constexpr size_t kPostedBlocksKept = 64 * 1024;

}  // namespace

PeerProcess::PeerProcess(int socket) : process_(ProcessOf(socket)) {
  if (process_.valid() && Stirs(process_.get())) process_ = UniqueFd();
}

bool PeerProcess::Ended() const { return process_.valid() && Stirs(process_.get()); }

void AsyncErrors::Add(AsyncError error) {
  const std::lock_guard lock(mutex_);
  if (errors_.size() == kKept) {
    errors_.pop_front();
    ++dropped_;
  }
  errors_.push_back(std::move(error));
}

std::vector<AsyncError> AsyncErrors::Take(size_t limit, uint64_t* dropped) {
  const std::lock_guard lock(mutex_);
  const auto end = errors_.begin() + static_cast<ptrdiff_t>(std::min(limit, errors_.size()));
  std::vector<AsyncError> taken(std::make_move_iterator(errors_.begin()),
                                std::make_move_iterator(end));
  errors_.erase(errors_.begin(), end);
  *dropped = std::exchange(dropped_, 0);
  return taken;
}

Result<std::shared_ptr<DaemonSession>> DaemonSession::Open(const std::string& socket_path,
                                                           const std::string& client_name,
                                                           Deadline deadline,
                                                           int64_t send_timeout_ms,
                                                           AsyncErrors* errors) {
  // Looked for at each try: the daemon that comes next may listen elsewhere.
  KVT_ASSIGN_OR_RETURN(
      UniqueFd socket,
      ConnectUnixSocket(socket_path.empty() ? FindSocket() : socket_path, deadline));
  auto session = std::make_shared<DaemonSession>(std::move(socket), send_timeout_ms, errors);
  KVT_RETURN_IF_ERROR(session->SayHello(client_name, deadline));
  return session;
}

DaemonSession::DaemonSession(UniqueFd socket, int64_t send_timeout_ms, AsyncErrors* errors)
    : errors_(errors),
      daemon_(socket.get()),
      channel_(std::move(socket), wire::kMaxFrameBytes, send_timeout_ms,
               {.sink = [this](const wire::Frame& frame) { return OnFrame(frame); },
                .on_lost = [this] { OnLost(); },
                .on_abandoned = [this] { OnAbandoned(); },
                .may_pause = [this] { return MayPause(); }}) {}

Status DaemonSession::SayHello(const std::string& client_name, Deadline deadline) {
  const wire::Hello hello{.client_name = client_name};
  UniqueFd counters;
  Result<wire::HelloReply> reply =
      channel_.Call<wire::HelloReply>(hello, deadline, {}, {&counters, 1});
  if (!reply) {
    // A daemon that turns a client away says why before it hangs up.
    const std::optional<Error> farewell = channel_.farewell();
    return tl::unexpected(farewell ? *farewell : std::move(reply).error());
  }
  hello_ = *std::move(reply);
  if (hello_.major != hello.major || hello_.minor > hello.minor) {
    return MakeError(ErrorCode::kUnsupported, "version_mismatch",
                     fmt::format("the daemon speaks protocol version {}.{}, this library {}.{}",
                                 hello_.major, hello_.minor, hello.major, hello.minor));
  }
  KVT_ASSIGN_OR_RETURN(counters_, LoadCounters::Map(std::move(counters)));
  hello_.max_hashes = std::min(hello_.max_hashes, wire::kMaxHashesPerCall);
  hello_.max_blocks = std::min(hello_.max_blocks, wire::kMaxBlocksPerCall);
  return {};
}

Status DaemonSession::WatchForLoss() {
  const std::lock_guard lock(threads_mutex_);
  if (watch_) return {};
  KVT_ASSIGN_OR_RETURN(watch_, LossWatch::Start(channel_.socket(), [this] {
                         // Takes in the daemon's last messages; then the channel knows of the loss,
                         // too.
                         if (!channel_.Poll() && counters_) counters_->ReleaseAll();
                       }));
  return {};
}

// Without a thread for them, late replies are taken in by the next call.
void DaemonSession::OnAbandoned() {
  const std::lock_guard lock(threads_mutex_);
  if (late_replies_) return;
  Result<std::unique_ptr<LateReplies>> started = LateReplies::Start(&channel_);
  if (started) late_replies_ = *std::move(started);
}

void DaemonSession::OnLost() {
  if (counters_) counters_->ReleaseAll();
  const Error error{ErrorCode::kUnavailable, "connection_lost", {}};
  for (const auto& [region, transfers] : regions_) transfers->FailAll(error);
}

std::optional<uint32_t> DaemonSession::TakeWorkspaceNumber() {
  const std::lock_guard lock(workspaces_mutex_);
  for (uint32_t number = 0; number < workspaces_.size(); ++number) {
    if (workspaces_[number]) continue;
    workspaces_[number] = true;
    return number;
  }
  return std::nullopt;
}

void DaemonSession::GiveBackWorkspaceNumber(uint32_t number) {
  const std::lock_guard lock(workspaces_mutex_);
  workspaces_[number] = false;
}

// Parts that wait here to be sent are counted as well, so that the daemon may have fewer.
bool DaemonSession::MayPause() const {
  uint64_t under_way = 0;
  for (const auto& [region, transfers] : regions_) under_way += transfers->PriceUnderWay();
  return under_way >= wire::kTransfersPauseAt;
}

Result<std::vector<uint8_t>> DaemonSession::LookUp(PoolId pool, std::span<const BlockHash> hashes,
                                                   Deadline deadline) {
  const wire::Lookup request{.pool = pool, .hashes = hashes};
  const auto check = [&](const wire::LookupReply& reply) -> Status {
    if (reply.presence.size() == hashes.size()) return {};
    return MakeError(ErrorCode::kCorrupt, "lookup_reply_invalid", "a wrong number of answers");
  };
  KVT_ASSIGN_OR_RETURN(wire::LookupReply reply,
                       channel_.Call<wire::LookupReply>(request, deadline, {.on_reply = check}));
  return std::move(reply.presence);
}

void DaemonSession::Detach(PoolId pool) { (void)channel_.GiveBack(wire::Detach{.pool = pool}); }

Status DaemonSession::AddRegion(PoolId region, std::shared_ptr<Transfers> transfers) {
  if (regions_.emplace(region, std::move(transfers)).second) return {};
  return MakeError(ErrorCode::kCorrupt, "region_id_reused", fmt::format("{}", region.value));
}

void DaemonSession::CancelAcquire(uint64_t request_id, std::vector<PoolId> pools) {
  cancelled_acquires_.emplace(request_id, std::move(pools));
}

void DaemonSession::CancelWorkspace(uint64_t request_id, uint32_t number) {
  cancelled_workspaces_.emplace(request_id, number);
}

void DaemonSession::ExpectResumed(uint64_t request_id, size_t claims) {
  resumed_[request_id].claims = claims;
}

std::optional<Result<wire::ResumeReply>> DaemonSession::TakeResumed(uint64_t request_id) {
  const auto it = resumed_.find(request_id);
  if (it == resumed_.end() || !it->second.answer) return std::nullopt;
  std::optional<Result<wire::ResumeReply>> answer = std::move(it->second.answer);
  resumed_.erase(it);
  return answer;
}

void DaemonSession::RememberPosted(uint64_t request_id, uint64_t attachment,
                                   std::vector<BlockHandle> blocks) {
  posted_blocks_ += blocks.size();
  posted_.push_back({request_id, attachment, std::move(blocks)});
  while (posted_blocks_ > kPostedBlocksKept) {
    posted_blocks_ -= posted_.front().blocks.size();
    posted_.pop_front();
  }
}

Status DaemonSession::OnFrame(const wire::Frame& frame) {
  switch (static_cast<wire::MessageType>(frame.type)) {
    case wire::MessageType::kLoadProgress: {
      KVT_ASSIGN_OR_RETURN(const wire::LoadProgress progress,
                           wire::Decode<wire::LoadProgress>(frame.payload));
      return loads_.OnProgress(progress.progress);
    }
    case wire::MessageType::kAcquireReply:
      return OnLateAcquire(frame);
    case wire::MessageType::kCommitReply:
      return OnCommitReply(frame);
    case wire::MessageType::kReleaseReply:
      return OnReleaseReply(frame);
    case wire::MessageType::kTransferDone:
      return OnTransferDone(frame);
    case wire::MessageType::kOpenRegionReply:
      return OnLateOpenRegion(frame);
    case wire::MessageType::kAttachReply:
      return OnLateAttach(frame);
    case wire::MessageType::kResumeReply:
      return OnResumeReply(frame);
    case wire::MessageType::kWorkspaceReply:
      OnLateWorkspace(frame);
      return {};
    case wire::MessageType::kError:
      return OnError(frame);
    // Replies that came after their callers had given up.
    case wire::MessageType::kHelloReply:
    case wire::MessageType::kRegisterModelReply:
    case wire::MessageType::kDevicesReply:
    case wire::MessageType::kCloseRegionReply:
    case wire::MessageType::kAttendReply:
    case wire::MessageType::kPrefetchReply:
    case wire::MessageType::kLookupReply:
    case wire::MessageType::kPinReply:
    case wire::MessageType::kHintReply:
    case wire::MessageType::kTokensReply:
    case wire::MessageType::kStatsReply:
    case wire::MessageType::kKeepMemoryReply:
    case wire::MessageType::kTakeMemoryReply:
    case wire::MessageType::kReleaseMemoryReply:
    case wire::MessageType::kPong:
      return {};
    default:
      return MakeError(ErrorCode::kCorrupt, "unexpected_message",
                       fmt::format("type {}", frame.type));
  }
}

Status DaemonSession::OnLateAcquire(const wire::Frame& frame) {
  const auto it = cancelled_acquires_.find(frame.request_id);
  if (it == cancelled_acquires_.end()) {
    return MakeError(ErrorCode::kCorrupt, "unexpected_message", "a second ACQUIRE_REPLY");
  }
  const std::vector<PoolId> pools = std::move(it->second);
  cancelled_acquires_.erase(it);
  KVT_ASSIGN_OR_RETURN(const wire::AcquireReply reply,
                       wire::Decode<wire::AcquireReply>(frame.payload));
  if (reply.parts.size() != pools.size()) {
    return MakeError(ErrorCode::kCorrupt, "acquire_reply_invalid", "a wrong number of groups");
  }
  for (size_t i = 0; i < pools.size(); ++i) DeferRelease(pools[i], reply.parts[i]);
  return {};
}

void DaemonSession::DeferRelease(PoolId pool, const wire::AcquireReply::Part& part) {
  wire::Release release{.pool = pool, .blocks = part.new_blocks};
  const auto defer = [&] {
    channel_.Defer(release);
    release.blocks.clear();
  };
  for (const AcquiredBlock& hit : part.hits) {
    if (release.blocks.size() >= hello_.max_blocks) defer();
    release.blocks.push_back(hit.handle);
  }
  if (!release.blocks.empty()) defer();
}

Status DaemonSession::OnCommitReply(const wire::Frame& frame) {
  KVT_ASSIGN_OR_RETURN(const wire::CommitReply reply,
                       wire::Decode<wire::CommitReply>(frame.payload));
  for (const wire::CommitReply::Item& item : reply.items) {
    // A duplicate is no failure: the hash is served, by another block.
    if (item.outcome == wire::CommitOutcome::kDuplicate) continue;
    Report(frame.request_id, item.position, item.code, item.reason);
  }
  return {};
}

Status DaemonSession::OnReleaseReply(const wire::Frame& frame) {
  KVT_ASSIGN_OR_RETURN(const wire::ReleaseReply reply,
                       wire::Decode<wire::ReleaseReply>(frame.payload));
  for (const wire::ReleaseReply::Item& item : reply.errors) {
    Report(frame.request_id, item.position, item.code, item.reason);
  }
  return {};
}

// The region's opener waits no longer, so the daemon is to give it up with the next request.
Status DaemonSession::OnLateOpenRegion(const wire::Frame& frame) {
  KVT_ASSIGN_OR_RETURN(const wire::OpenRegionReply reply,
                       wire::Decode<wire::OpenRegionReply>(frame.payload));
  channel_.Defer(wire::CloseRegion{.region = reply.region});
  return {};
}

// The same of a pool.
Status DaemonSession::OnLateAttach(const wire::Frame& frame) {
  KVT_ASSIGN_OR_RETURN(const wire::AttachReply reply,
                       wire::Decode<wire::AttachReply>(frame.payload));
  channel_.Defer(wire::Detach{.pool = reply.pool});
  return {};
}

Status DaemonSession::OnResumeReply(const wire::Frame& frame) {
  KVT_ASSIGN_OR_RETURN(wire::ResumeReply reply, wire::Decode<wire::ResumeReply>(frame.payload));
  const auto it = resumed_.find(frame.request_id);
  if (it == resumed_.end() || it->second.answer || reply.outcomes.size() != it->second.claims) {
    return MakeError(ErrorCode::kCorrupt, "resume_reply_invalid", "a wrong number of answers");
  }
  it->second.answer = std::move(reply);
  return {};
}

// The next workspace of that number is asked for behind the message that closes this one.
void DaemonSession::OnLateWorkspace(const wire::Frame& frame) {
  const auto it = cancelled_workspaces_.find(frame.request_id);
  if (it == cancelled_workspaces_.end()) return;
  channel_.Defer(wire::WorkspaceClose{.number = it->second});
  GiveBackWorkspaceNumber(it->second);
  cancelled_workspaces_.erase(it);
}

Status DaemonSession::OnTransferDone(const wire::Frame& frame) {
  KVT_ASSIGN_OR_RETURN(const wire::TransferDone done,
                       wire::Decode<wire::TransferDone>(frame.payload));
  const auto it = regions_.find(done.region);
  if (it != regions_.end()) return it->second->OnDone(done);
  return MakeError(ErrorCode::kCorrupt, "unknown_region", fmt::format("{}", done.region.value));
}

Status DaemonSession::OnError(const wire::Frame& frame) {
  KVT_ASSIGN_OR_RETURN(const wire::ErrorReply reply, wire::Decode<wire::ErrorReply>(frame.payload));
  if (frame.request_id == 0) {
    channel_.set_farewell(reply.error);
    return {};
  }
  cancelled_acquires_.erase(frame.request_id);
  if (const auto it = cancelled_workspaces_.find(frame.request_id);
      it != cancelled_workspaces_.end()) {
    GiveBackWorkspaceNumber(it->second);
    cancelled_workspaces_.erase(it);
  }
  if (const auto it = resumed_.find(frame.request_id); it != resumed_.end()) {
    it->second.answer = tl::unexpected(reply.error);
    return {};
  }
  for (const auto& [region, transfers] : regions_) {
    if (transfers->OnRefused(frame.request_id, reply.error)) return {};
  }
  for (const Posted& posted : posted_) {
    if (posted.request_id != frame.request_id) continue;
    errors_->Add({.attachment = 0, .code = reply.error.code, .reason = reply.error.reason});
  }
  return {};
}

void DaemonSession::Report(uint64_t request_id, uint32_t position, ErrorCode code,
                           std::string reason) {
  AsyncError error{.code = code, .reason = std::move(reason)};
  for (const Posted& posted : posted_) {
    if (posted.request_id != request_id || position >= posted.blocks.size()) continue;
    error.attachment = posted.attachment;
    error.block = posted.blocks[position];
  }
  errors_->Add(std::move(error));
}

}  // namespace kvtier::client
