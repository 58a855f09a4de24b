// SPDX-License-Identifier: Apache-2.0
// The process at the other end of a socket: whether it has ended, and with it every copy that it
// had under way.
#pragma once

#include "base/posix.h"

namespace kvtier::client {

// Constant after construction; any thread.
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

}  // namespace kvtier::client
