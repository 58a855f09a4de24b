// SPDX-License-Identifier: Apache-2.0
// Whether the other end of a connection has gone, for those who use its memory.
#pragma once

#include <mutex>

namespace kvtier {

// Whether a connection's peer has closed its end, so that it may have told its callers that all
// which it asked for is over, and hears of nothing more. It is seen at once, however much there is
// to read before the end of the stream. Any thread.
class HangUp {
 public:
  explicit HangUp(int socket) : socket_(socket) {}
  [[nodiscard]] bool Seen() const;
  // The socket is about to be closed: whatever comes later was hung up.
  void NoteEnd();

 private:
  mutable std::mutex mutex_;
  int socket_;
};

}  // namespace kvtier
