// SPDX-License-Identifier: Apache-2.0
// Threads for calls on what other processes have sent, which may hang for as long as these like.
// They must hold up neither the event loop nor calls on what others have sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/executor.h"

namespace kvtier {

inline constexpr size_t kMaxThreadsPerSender = 4;

// Each lane has threads of its own, kMaxThreadsPerSender at most, that are started when there is
// something to do and end when all is done. One that hangs is given up: the lane's next calls get
// another, until all that a lane may have hang. A copy is another handle of the same threads. Any
// thread may call.
class SenderThreads {
 public:
  enum class Use : uint8_t { kClose, kCloseSocket, kReadTable };
  // The calls of one use for one sender.
  using Lane = std::pair<Use, std::string>;

  SenderThreads();

  // Runs the call on a thread of the lane, in the order of the lane's calls unless one hangs.
  // Returns at once. The call may outlive this object and every other of the daemon.
  void Run(Lane lane, std::function<void()> call) const;
  // Calls of the lane, or of all lanes, that have not ended.
  [[nodiscard]] size_t pending(const Lane& lane) const;
  [[nodiscard]] size_t pending() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Posts to a loop from threads that may outlive it. Copies belong together.
class LoopMail {
 public:
  // `loop` is borrowed until Close.
  explicit LoopMail(EventQueue* loop);

  // Posts the event, or drops it if the mail was closed. Any thread.
  void Post(std::function<void()> event) const;
  // When this returns, nothing is posted any more. The loop's thread only.
  void Close() const;

 private:
  struct Box;
  std::shared_ptr<Box> box_;
};

}  // namespace kvtier
