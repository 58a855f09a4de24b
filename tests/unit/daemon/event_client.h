// SPDX-License-Identifier: Apache-2.0
// A router's socket: speaks ZMTP as SUB or REQ do, with nothing of the daemon's own code.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"

namespace kvtier {

// Never blocks: the test's own thread runs the loop of the other side.
class EventClient {
 public:
  // Connects to "tcp://127.0.0.1:PORT", from an address of this machine, or to "ipc:///PATH",
  // greets, and says what kind of socket it is.
  EventClient(const std::string& endpoint, std::string_view socket_type,
              const std::string& from = "127.0.0.1");

  void Subscribe(std::string_view topic) { SendFrame(0, "\x01" + std::string(topic)); }
  void Cancel(std::string_view topic) { SendFrame(0, std::string(1, '\0') + std::string(topic)); }
  // Asks for all batches from `first` on.
  void Request(uint64_t first);
  // One frame with these flags (1: more follow, 4: a command), shorter than 256 bytes.
  void SendFrame(uint8_t flags, const std::string& body);
  void SendRaw(std::string_view bytes);

  using Message = std::vector<std::string>;
  // The parts of the next message that has come, if one has; commands are left out.
  [[nodiscard]] std::optional<Message> Receive();
  // The other side has ended the connection.
  [[nodiscard]] bool ended();

 private:
  void ReadSocket();
  // Takes a frame off the bytes read so far; false if there is none.
  bool TakeFrame();

  UniqueFd socket_;
  std::string read_;
  bool greeted_ = false;
  bool ended_ = false;
  Message parts_;
  std::deque<Message> messages_;
};

// "\0\0\0\0\0\0\0\5" as a number.
[[nodiscard]] uint64_t SequenceOf(const std::string& part);

}  // namespace kvtier
