// SPDX-License-Identifier: Apache-2.0
// One session with a daemon: a channel that has said hello, and the state that the daemon has sent
// over it.
// Lost with its channel.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/posix.h"
#include "base/result.h"
#include "client/core/channel.h"
#include "client/core/late_replies.h"
#include "client/core/load_counters.h"
#include "client/core/loads.h"
#include "client/core/transfers.h"
#include "protocol/messages.h"

namespace kvtier::client {

// The process at the other end of a socket: whether it has ended, and with it every copy that it
// had under way. Constant after construction; any thread.
class PeerProcess {
 public:
  // Asks the connected socket for its peer. The process stays unknown where the kernel does not
  // tell it, as from another PID namespace, and where the one that began to listen has ended.
  explicit PeerProcess(int socket);

  // True means that none of its threads runs any more and that its descriptors are closed: a GPU's
  // driver has ended the copies of its contexts then. False also means that it is not known.
  [[nodiscard]] bool Ended() const;

 private:
  UniqueFd process_;  // a pidfd, or none
};

// Errors of fire-and-forget calls, kept until they are taken.
struct AsyncError {
  // The block that the error concerns; attachment 0 if it concerns the whole call.
  uint64_t attachment = 0;
  BlockHandle block;
  ErrorCode code = ErrorCode::kInternal;
  std::string reason;
};

// Thread-safe. Keeps the latest kKept.
class AsyncErrors {
 public:
  static constexpr size_t kKept = 1024;

  void Add(AsyncError error);
  // Up to `limit`, oldest first. `dropped`: how many were lost since the last Take.
  [[nodiscard]] std::vector<AsyncError> Take(size_t limit, uint64_t* dropped);

 private:
  std::mutex mutex_;
  std::deque<AsyncError> errors_;
  uint64_t dropped_ = 0;
};

// Thread-safe.
class DaemonSession {
 public:
  // Connects and says hello. A daemon that takes in no requests for `send_timeout_ms` is given up.
  // `errors` receives what fire-and-forget calls bring; it must outlive the session. Errors: those
  // of ConnectUnixSocket; the daemon's refusal; kUnavailable; kTimeout.
  [[nodiscard]] static Result<std::shared_ptr<DaemonSession>> Open(const std::string& socket_path,
                                                                   const std::string& client_name,
                                                                   Deadline deadline,
                                                                   int64_t send_timeout_ms,
                                                                   AsyncErrors* errors);
  DaemonSession(UniqueFd socket, int64_t send_timeout_ms, AsyncErrors* errors);
  DaemonSession(const DaemonSession&) = delete;
  DaemonSession& operator=(const DaemonSession&) = delete;

  [[nodiscard]] Channel& channel() { return channel_; }
  // Constant once open; not null.
  [[nodiscard]] const std::shared_ptr<LoadCounters>& counters() const { return counters_; }
  // From now on the end of the connection is noticed although no call waits on it. Any thread.
  // Errors: those of LossWatch::Start.
  [[nodiscard]] Status WatchForLoss();
  // The daemon, also after the connection was lost.
  [[nodiscard]] const PeerProcess& daemon() const { return daemon_; }
  // The limits that the daemon accepts. Constant once open.
  [[nodiscard]] const wire::HelloReply& limits() const { return hello_; }

  // Asks which tiers hold each block of a pool or a region now: one byte of kPresent* bits each.
  // Errors: the daemon's; kUnavailable; kTimeout. REQUIRES: at least one hash.
  [[nodiscard]] Result<std::vector<uint8_t>> LookUp(PoolId pool, std::span<const BlockHash> hashes,
                                                    Deadline deadline);

  // The lowest number that no workspace of this session has; nothing if all are taken.
  [[nodiscard]] std::optional<uint32_t> TakeWorkspaceNumber();
  void GiveBackWorkspaceNumber(uint32_t number);

  // The region's transfers receive the daemon's messages about them, and the connection's loss,
  // until it is removed. Errors: kCorrupt "region_id_reused". REQUIRES: the channel's lock is held.
  [[nodiscard]] Status AddRegion(PoolId region, std::shared_ptr<Transfers> transfers);
  void RemoveRegion(PoolId region) { regions_.erase(region); }

  // One ATTACH of the pool is taken back: with the last, the session holds nothing there any more.
  // Waits for no answer. Does nothing without a connection, or with a daemon that does not know the
  // message: the pool's blocks go with the session.
  void Detach(PoolId pool);

  // A RESUME with so many claims is about to be sent: its answer is kept, whenever it comes, until
  // it is taken. REQUIRES: the channel's lock is held.
  void ExpectResumed(uint64_t request_id, size_t claims);
  // Nothing: it has not come yet. REQUIRES: the channel's lock is held.
  [[nodiscard]] std::optional<Result<wire::ResumeReply>> TakeResumed(uint64_t request_id);

  // REQUIRES: the channel's lock is held.
  [[nodiscard]] LoadStates& loads() { return loads_; }
  // The caller of an acquire waits no longer: should it still be granted, everything is released.
  // REQUIRES: the channel's lock is held.
  void CancelAcquire(uint64_t request_id, std::vector<PoolId> pools);
  // The opener of a workspace waits no longer: should it still be opened, it is closed, and its
  // number stays taken until the daemon has answered. REQUIRES: the channel's lock is held.
  void CancelWorkspace(uint64_t request_id, uint32_t number);
  // Remembers what a fire-and-forget call was about, so that its errors can name the blocks.
  // REQUIRES: the channel's lock is held.
  void RememberPosted(uint64_t request_id, uint64_t attachment, std::vector<BlockHandle> blocks);

 private:
  struct Posted {
    uint64_t request_id = 0;
    uint64_t attachment = 0;
    std::vector<BlockHandle> blocks;
  };

  [[nodiscard]] Status SayHello(const std::string& client_name, Deadline deadline);
  // The channel's sink.
  [[nodiscard]] Status OnFrame(const wire::Frame& frame);
  [[nodiscard]] Status OnLateAcquire(const wire::Frame& frame);
  // Has the blocks released with the next request.
  void DeferRelease(PoolId pool, const wire::AcquireReply::Part& part);
  [[nodiscard]] Status OnCommitReply(const wire::Frame& frame);
  [[nodiscard]] Status OnReleaseReply(const wire::Frame& frame);
  [[nodiscard]] Status OnLateOpenRegion(const wire::Frame& frame);
  [[nodiscard]] Status OnLateAttach(const wire::Frame& frame);
  [[nodiscard]] Status OnResumeReply(const wire::Frame& frame);
  void OnLateWorkspace(const wire::Frame& frame);
  [[nodiscard]] Status OnTransferDone(const wire::Frame& frame);
  [[nodiscard]] Status OnError(const wire::Frame& frame);
  // The channel's on_lost, on_abandoned and may_pause.
  void OnLost();
  void OnAbandoned();
  [[nodiscard]] bool MayPause() const;
  void Report(uint64_t request_id, uint32_t position, ErrorCode code, std::string reason);

  AsyncErrors* const errors_;
  const PeerProcess daemon_;
  wire::HelloReply hello_;
  std::shared_ptr<LoadCounters> counters_;
  // Guarded by the channel's lock.
  LoadStates loads_;
  std::unordered_map<PoolId, std::shared_ptr<Transfers>> regions_;
  std::unordered_map<uint64_t, std::vector<PoolId>> cancelled_acquires_;  // pools of the parts
  std::unordered_map<uint64_t, uint32_t> cancelled_workspaces_;           // numbers, by request
  struct Resumed {
    size_t claims = 0;
    std::optional<Result<wire::ResumeReply>> answer;
  };
  std::unordered_map<uint64_t, Resumed> resumed_;  // by request
  std::deque<Posted> posted_;
  size_t posted_blocks_ = 0;

  std::mutex workspaces_mutex_;
  std::bitset<wire::kMaxWorkspaces> workspaces_;  // taken; guarded by workspaces_mutex_

  Channel channel_;

  std::mutex threads_mutex_;
  // Guarded by threads_mutex_; each is made when it is first needed.
  std::unique_ptr<LossWatch> watch_;
  std::unique_ptr<LateReplies> late_replies_;
};

}  // namespace kvtier::client
