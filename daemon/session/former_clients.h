// SPDX-License-Identifier: Apache-2.0
// Processes that used the pools of an earlier daemon when it died, and still have the memory
// mapped. They keep what they held there from being used anew, until they have taken it back, have
// not come for it in time, or are gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/posix.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/session/quarantine.h"
#include "tiers/state/pool_keeper.h"
#include "tiers/types/session_identity.h"

namespace kvtier {

// For so long after its start a daemon keeps what former sessions referenced from being evicted, so
// that their clients find it when they come back: many times what a client waits for a daemon, and
// short enough that those which do not come back cost others little.
inline constexpr int64_t kResumeGraceMs = 30'000;

// Event loop only.
//
// A client that does not come in time may still come later: blocks private to its session wait
// until its process has ended, because that may write to them, and blocks that it referenced are
// given to it again if no other client has needed the space.
class FormerClients {
 public:
  struct Options {
    // For how long copies of the dead daemon itself may still arrive on a GPU, from now on; 0 where
    // none can.
    int64_t copies_until_ms = 0;
    int64_t grace_ms = kResumeGraceMs;
  };

  // `released` is called, from a later event, for each session of `clients` that nothing holds any
  // more.
  FormerClients(EventLoop* loop, Log* log, std::vector<AbsentClients> clients,
                const Options& options, Quarantine::KernelsRemain kernels_remain,
                std::function<void(SessionId)> released);
  FormerClients(const FormerClients&) = delete;
  FormerClients& operator=(const FormerClients&) = delete;

  // The session that stands for the former one in the pool (AbsentClients::Session::holdings), if
  // `peer` is the process that had it, under the same user, and knows its secret. Nothing
  // otherwise.
  [[nodiscard]] std::optional<SessionId> Find(PoolId pool, SessionId former,
                                              const SessionSecret& secret, const Peer& peer);
  // The client has taken back all that it wants of what Find returned.
  void OnResumed(SessionId holdings);
  // Former sessions that are waited for, each counted once for every pool that it had.
  [[nodiscard]] size_t waiting() const { return quarantine_.sessions(); }

 private:
  // One pool's: how many there are to wait for. The dead daemon's copies count as one.
  struct Pool {
    PoolId id;
    SessionId readers;
    SessionId writers;
    bool writers_hold = false;
    size_t readers_left = 1;
    size_t writers_left = 1;
  };
  // A former session in one pool. The quarantine knows it by its position.
  struct Member {
    size_t pool = 0;
    AbsentClients::Session session;
    bool reads = true;
    bool gone = false;
  };

  void Watch(size_t member);
  void OnGone(size_t member);
  void ReadNoMore(Member* member);
  void DropReader(Pool* pool);
  void DropWriter(Pool* pool);

  Log& log_;
  const std::function<void(SessionId)> released_;
  std::vector<Pool> pools_;
  std::vector<Member> members_;
  Timer copies_;
  Timer grace_;
  bool told_of_no_birth_ = false;
  Quarantine quarantine_;
};

}  // namespace kvtier
