// SPDX-License-Identifier: Apache-2.0
// All links of one connection to one pool. With a session's last RESUME, the daemon gives back all
// that the session held there and that was not claimed: so these links are resumed together.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "client/core/resumption.h"
#include "client/core/unix_socket.h"

namespace kvtier::client {

class Connection;
class PoolLink;

// Thread-safe.
class LinkGroup {
 public:
  // The connection outlives this object.
  explicit LinkGroup(Connection* connection) : connection_(*connection) {}
  LinkGroup(const LinkGroup&) = delete;
  LinkGroup& operator=(const LinkGroup&) = delete;

  void Join(const std::shared_ptr<PoolLink>& link);

  // One thread resumes at a time; after the deadline, another still does and nothing is locked.
  [[nodiscard]] std::unique_lock<std::timed_mutex> Lock(Deadline deadline) {
    return std::unique_lock(resume_mutex_, deadline);
  }
  // Takes back, from the next daemon, what `link` and all others of the group that have lost theirs
  // held; waits for that daemon until the deadline. REQUIRES: locked; the link was lost. Errors:
  // kTimeout: the daemon is there and has not answered yet, and another call goes on with it;
  // kUnavailable (also of a daemon that has gone again), kStaleHandle (nothing can be taken back),
  // those of requests.
  [[nodiscard]] Status Resume(const PoolLink& link, Deadline deadline);
  // A link over the session will not be resumed: the blocks that it held are not claimed, and must
  // not be given back either, since the application may still write there. REQUIRES: locked.
  void Forsake(const DaemonSession& session);

 private:
  [[nodiscard]] Status ResumeIn(const std::shared_ptr<DaemonSession>& session,
                                const PoolLink& link);
  // Begins the resumption of the lost links from the sessions over which they held blocks.
  [[nodiscard]] Result<std::unique_ptr<Resumption>> Begin(
      const std::shared_ptr<DaemonSession>& session, const PoolLink& asker);
  // The resumption has ended with its session.
  void EndHalfway(const DaemonSession& session);
  [[nodiscard]] std::vector<std::shared_ptr<PoolLink>> LostLinks(
      const DaemonSession& session) const;

  Connection& connection_;

  std::timed_mutex resume_mutex_;
  // Guarded by resume_mutex_: what a call has begun, and another is to go on with; sessions of
  // daemons that died while a resume was under way there, the latest last; and those that hold
  // blocks of links that Forsake gave up.
  std::unique_ptr<Resumption> under_way_;
  std::vector<FormerSession> halfway_;
  std::vector<FormerSession> forsaken_;

  mutable std::mutex mutex_;  // taken last
  std::vector<std::weak_ptr<PoolLink>> links_;
};

}  // namespace kvtier::client
