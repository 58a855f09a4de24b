// SPDX-License-Identifier: Apache-2.0
// Processes that used the pools of an earlier daemon when it died, and still have the memory
// mapped. They keep what they held there from being used anew, until they are gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/posix.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/session/quarantine.h"
#include "tiers/state/pool_keeper.h"
#include "tiers/types/process_identity.h"

namespace kvtier {

// Event loop only.
//
// A process that says HELLO knows that its sessions ended: what it referenced may be overwritten
// from then on, as the client library's contract says of every lost connection. That it has stopped
// writing to blocks of its own is known only when it has ended, and nothing of it remains on a GPU.
class FormerClients {
 public:
  // `released` is called, from a later event, for each session of `clients` that nothing holds any
  // more. `copies_until_ms` is how long copies of the dead daemon itself may still arrive on a GPU,
  // from now on; 0 where none can.
  FormerClients(EventLoop* loop, Log* log, std::vector<AbsentClients> clients,
                int64_t copies_until_ms, Quarantine::KernelsRemain kernels_remain,
                std::function<void(SessionId)> released);
  FormerClients(const FormerClients&) = delete;
  FormerClients& operator=(const FormerClients&) = delete;

  // The process has said HELLO.
  void OnHello(const Peer& peer);
  // Processes that are waited for, counted once for each pool that they had.
  [[nodiscard]] size_t waiting() const { return quarantine_.sessions(); }

 private:
  // One pool's: how many there are to wait for. The dead daemon's copies count as one.
  struct Pool {
    SessionId readers;
    SessionId writers;
    size_t readers_left = 1;
    size_t writers_left = 1;
  };
  // A process that had the pool. The quarantine knows it by its position.
  struct Member {
    size_t pool = 0;
    ProcessIdentity process;
    bool reads = true;
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
  Quarantine quarantine_;
};

}  // namespace kvtier
