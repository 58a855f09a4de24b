// Keeps the private blocks of sessions that have ended out of use until their processes are gone: a
// process that lost its connection may still write to what it has mapped.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/unique_fd.h"
#include "daemon/server/event_loop.h"
#include "daemon/server/peer.h"

namespace kvtier {

class Quarantine {
 public:
  // `released` is called, from a later event, for each session whose process has ended.
  Quarantine(EventLoop* loop, std::function<void(SessionId)> released)
      : loop_(loop), released_(std::move(released)) {}
  Quarantine(const Quarantine&) = delete;
  Quarantine& operator=(const Quarantine&) = delete;

  void Add(SessionId session, Peer peer);

  // Sessions that wait for their processes to end.
  [[nodiscard]] size_t sessions() const;

 private:
  struct Process {
    Process(EventLoop* loop, Peer peer)
        : pid(peer.pid), pidfd(std::move(peer.pidfd)), watch(loop, pidfd.get()) {}
    const int32_t pid;
    const UniqueFd pidfd;
    FdWatch watch;
    std::vector<SessionId> sessions;
  };

  EventLoop* const loop_;
  const std::function<void(SessionId)> released_;
  // One entry per process, however often it connects, so that it cannot use up our descriptors.
  std::list<Process> processes_;
};

}  // namespace kvtier
