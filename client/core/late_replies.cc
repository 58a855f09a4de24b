// SPDX-License-Identifier: Apache-2.0
#include "client/core/late_replies.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/core/own_thread.h"

namespace kvtier::client {
namespace {

void Signal(int event) {
  const uint64_t one = 1;
  (void)!::write(event, &one, sizeof(one));
}

}  // namespace

Result<std::unique_ptr<LateReplies>> LateReplies::Start(Channel* channel) {
  KVT_ASSIGN_OR_RETURN(UniqueFd wake, OpenEvent(EFD_NONBLOCK));
  KVT_ASSIGN_OR_RETURN(UniqueFd stop, OpenEvent(0));
  std::unique_ptr<LateReplies> started(new LateReplies(channel, std::move(wake), std::move(stop)));
  LateReplies* const replies = started.get();
  KVT_ASSIGN_OR_RETURN(started->thread_,
                       StartOwnThread("kvt-late-reply", [replies] { replies->Run(); }));
  return started;
}

LateReplies::~LateReplies() {
  if (!thread_.joinable()) return;
  Signal(stop_.get());
  thread_.join();
}

void LateReplies::Wake() { Signal(wake_.get()); }

void LateReplies::Run() {
  while (WaitFor(wake_.get())) {
    uint64_t calls;
    (void)!::read(wake_.get(), &calls, sizeof(calls));
    while (channel_.AwaitsLateReplies()) {
      if (!WaitFor(channel_.socket())) return;
      if (!channel_.Poll()) return;
    }
    (void)channel_.SendDeferred();
  }
}

bool LateReplies::WaitFor(int fd) const {
  pollfd fds[] = {{fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (fds[0].revents == 0 && fds[1].revents == 0) (void)::poll(fds, 2, -1);
  return fds[1].revents == 0;
}

}  // namespace kvtier::client
