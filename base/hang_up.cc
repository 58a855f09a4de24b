// SPDX-License-Identifier: Apache-2.0
#include "base/hang_up.h"

#include <poll.h>

namespace kvtier {

bool HangUp::Seen() const {
  const std::lock_guard lock(mutex_);
  pollfd poll_fd{.fd = socket_, .events = POLLRDHUP, .revents = 0};
  return socket_ < 0 || ::poll(&poll_fd, 1, 0) > 0;
}

void HangUp::NoteEnd() {
  const std::lock_guard lock(mutex_);
  socket_ = -1;
}

}  // namespace kvtier
