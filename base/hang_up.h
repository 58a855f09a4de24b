// SPDX-License-Identifier: Apache-2.0
// Whether the other end of a connection has gone, for those who use its memory.
#pragma once

#include <mutex>

namespace kvtier {

// Tells whether a connection's peer has closed its end. Such a peer hears of nothing more, and may
// have told its callers that all it asked for is over. This is seen at once, however much there is
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
