// SPDX-License-Identifier: Apache-2.0
#include "client/core/late_replies.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/core/own_thread.h"

namespace kvtier::client {
Result<std::unique_ptr<LateReplies>> LateReplies::Start(Channel* channel) {
  KVT_ASSIGN_OR_RETURN(UniqueFd wake, OpenEvent(EFD_NONBLOCK));
  KVT_ASSIGN_OR_RETURN(UniqueFd stop, OpenEvent(0));
  std::unique_ptr<LateReplies> started(new LateReplies(channel, std::move(wake), std::move(stop)));
  LateReplies* const replies = started.get();
  channel->SignalLateReplies(replies->wake_.get());
  // A reply may have come since its caller gave up, before the channel had whom to tell.
  SignalEvent(replies->wake_.get());
  KVT_ASSIGN_OR_RETURN(started->thread_,
                       StartOwnThread("kvt-late-reply", [replies] { replies->Run(); }));
  return started;
}

LateReplies::~LateReplies() {
  channel_.SignalLateReplies(-1);
  if (!thread_.joinable()) return;
  SignalEvent(stop_.get());
  thread_.join();
}

void LateReplies::Run() {
  while (WaitForNews()) {
    uint64_t calls;
    (void)!::read(wake_.get(), &calls, sizeof(calls));
    if (!channel_.Poll()) return;
    (void)channel_.SendDeferred();
  }
}

// The channel signals, too, if another thread has read the reply from the socket.
bool LateReplies::WaitForNews() const {
  const int socket = channel_.AwaitsLateReplies() ? channel_.socket() : -1;
  pollfd fds[] = {{wake_.get(), POLLIN, 0}, {socket, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (::poll(fds, 3, -1) <= 0) {
  }
  return fds[2].revents == 0;
}

}  // namespace kvtier::client
