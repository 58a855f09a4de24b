// SPDX-License-Identifier: Apache-2.0
// Takes in replies whose callers have given up, also while the application makes no call: blocks
// that a daemon granted too late would else be held until the next one.
#pragma once

#include <thread>

#include "base/posix.h"
#include "client/core/channel.h"

namespace kvtier::client {

// One thread, which sleeps while no reply is outstanding.
class LateReplies {
 public:
  // The channel outlives this object.
  explicit LateReplies(Channel* channel);
  // Does not wait for replies.
  ~LateReplies();
  LateReplies(const LateReplies&) = delete;
  LateReplies& operator=(const LateReplies&) = delete;

  // A caller has given up. Any thread.
  void Wake();

 private:
  void Run();
  // Until there is something to read on `fd`. False: it is time to end.
  [[nodiscard]] bool WaitFor(int fd) const;

  Channel& channel_;
  const UniqueFd wake_;  // eventfds
  const UniqueFd stop_;
  std::thread thread_;
};

}  // namespace kvtier::client
