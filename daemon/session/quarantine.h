// SPDX-License-Identifier: Apache-2.0
// Keeps the private blocks of sessions that have ended out of use until their processes are gone: a
// process that lost its connection may still write to its mapped memory. So may its kernels on a
// GPU, even when it is gone, as long as a child of it keeps its open files.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "base/ids.h"
#include "base/posix.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"

namespace kvtier {

// Event loop only. It owns the credentials (and with them a pidfd) of every process that it waits
// for. One private block that is reused too early could be overwritten by its former owner after
// another client has committed it, so that a wrong KV cache would be served; this class exists to
// make that impossible.
class Quarantine {
 public:
  // Finds out whether the kernels of a process that has ended can still write, and answers by a
  // later event on the loop.
  using KernelsRemain = std::function<void(int32_t pid, std::function<void(bool)> answer)>;

  // `released` is called, from a later event, for each session whose process has ended, and has
  // left nothing behind. `kernels_remain` may be empty: nothing can be left. `withholds` says
  // whether a session still keeps blocks from use; without it, each does until it is released.
  Quarantine(EventLoop* loop, Log* log, std::function<void(SessionId)> released,
             KernelsRemain kernels_remain, std::function<bool(SessionId)> withholds = {})
      : loop_(loop),
        log_(log),
        released_(std::move(released)),
        kernels_remain_(std::move(kernels_remain)),
        withholds_(std::move(withholds)) {}
  Quarantine(const Quarantine&) = delete;
  Quarantine& operator=(const Quarantine&) = delete;

  // Takes over the ended session's peer. If the process has ended already, `released` is called in
  // a later event all the same. Adding cannot fail, and it keeps at most one descriptor for each
  // process that IsSameProcess can tell from others.
  void Add(SessionId session, Peer peer);

  // `released` is not called for this session. Nothing happens if it is not waited for.
  void Forget(SessionId session);

  // Sessions that keep blocks from use until their processes end.
  [[nodiscard]] size_t sessions() const;

 private:
  // A process that lives, or that has ended while something of it on a GPU remains. `again` waits
  // before the warning that it lives, and spaces the questions to the driver; one that was `asked`
  // about stays for the answer, which names it; `warned` keeps the log to one line for a process.
  struct Process {
    Process(EventLoop* loop, Peer of)
        : peer(std::move(of)), watch(loop, peer.pidfd.get()), again(loop) {}
    const Peer peer;
    FdWatch watch;
    Timer again;
    bool asked = false;
    bool warned = false;
    std::vector<SessionId> sessions;
  };
  using Place = std::list<Process>::iterator;

  [[nodiscard]] size_t Withholding(const Process& process) const;
  void WarnOfLiving(const Process& process) const;
  // The pidfd has become readable: the process is gone, but its kernels may not be.
  void OnEnded(Place process);
  // Releases the sessions, or asks again later. After the release `process` is no longer valid.
  void OnAnswer(Place process, bool remain);

  EventLoop* const loop_;
  Log* const log_;
  const std::function<void(SessionId)> released_;
  const KernelsRemain kernels_remain_;
  const std::function<bool(SessionId)> withholds_;
  // One entry for each living process, however often it connects, so that it cannot use up the
  // daemon's descriptors. One that has ended is not added to: its number may be another's by now.
  std::list<Process> processes_;
  // Answers may come when this is gone.
  Gate gate_;
};

}  // namespace kvtier
