// SPDX-License-Identifier: Apache-2.0
// Takes in replies whose callers have given up, also while the application makes no call: blocks
// that a daemon granted too late would else be held until the next one.
#pragma once

#include <memory>
#include <thread>
#include <utility>

#include "base/posix.h"
#include "base/result.h"
#include "client/core/channel.h"

namespace kvtier::client {

// One thread, which sleeps while no reply is outstanding.
class LateReplies {
 public:
  // The channel outlives the object, which alone has it signal late replies. Errors: those of
  // OpenEvent and StartOwnThread.
  [[nodiscard]] static Result<std::unique_ptr<LateReplies>> Start(Channel* channel);
  // Does not wait for replies.
  ~LateReplies();
  LateReplies(const LateReplies&) = delete;
  LateReplies& operator=(const LateReplies&) = delete;

 private:
  LateReplies(Channel* channel, UniqueFd wake, UniqueFd stop)
      : channel_(*channel), wake_(std::move(wake)), stop_(std::move(stop)) {}

  void Run();
  // Until a caller has given up, or a late reply may be there. False: it is time to end.
  [[nodiscard]] bool WaitForNews() const;

  Channel& channel_;
  const UniqueFd wake_;  // eventfds
  const UniqueFd stop_;
  std::thread thread_;  // none until Start has succeeded
};

}  // namespace kvtier::client
