// SPDX-License-Identifier: Apache-2.0
// ZMTP 3.0, the protocol of ZMQ sockets (rfc.zeromq.org/spec/23), as far as a listening PUB or
// ROUTER socket without authentication speaks it.
//
// It is spoken here, and not by libzmq, because a PUB socket of libzmq cannot send to one
// subscriber alone, which a snapshot for a router that comes late takes; and because the daemon
// would get a dozen libraries more, which it has no other use for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvtier {

inline constexpr size_t kZmtpGreetingBytes = 64;
// The longest frame that is taken from a peer: subscriptions and requests are short.
inline constexpr size_t kMaxZmtpFrameBytes = 1024;

// A frame of a peer. `body` points into the decoder; valid until its next Feed.
struct ZmtpFrame {
  bool more = false;  // of the same message follow
  bool command = false;
  std::string_view body;
};

// A command is a name and what follows it. Nothing if the body of a frame is none.
struct ZmtpCommand {
  std::string_view name;
  std::string_view data;
};
[[nodiscard]] std::optional<ZmtpCommand> ParseZmtpCommand(std::string_view body);
// The kind of socket that a READY command's data names, for example "SUB"; empty if it names none.
[[nodiscard]] std::string_view ZmtpSocketType(std::string_view ready_data);

// Cuts what a peer sends into its greeting and frames. Pure. Its memory is bounded by one frame and
// one Feed, provided that Next is called until it gives nothing before more is fed.
class ZmtpDecoder {
 public:
  void Feed(std::span<const std::byte> bytes);
  // The next frame; nothing when more bytes are needed. Errors: kUnsupported "zmtp_version",
  // "zmtp_mechanism"; kInvalidArgument "zmtp_greeting", "zmtp_flags"; kLimitExceeded
  // "zmtp_frame_too_long". The stream is lost after an error.
  [[nodiscard]] Result<std::optional<ZmtpFrame>> Next();

 private:
  [[nodiscard]] std::string_view rest() const {
    return std::string_view(buffer_).substr(position_);
  }
  // Whether the greeting is there.
  [[nodiscard]] Result<bool> ReadGreeting();

  std::string buffer_;
  size_t position_ = 0;
  bool greeted_ = false;
};

// These append the daemon's part of the talk. Both sides begin with the greeting, then with READY,
// which names the kind of socket.
void AppendZmtpGreeting(std::string* out);
void AppendZmtpReady(std::string_view socket_type, std::string* out);
void AppendZmtpCommand(std::string_view name, std::string_view data, std::string* out);
// One part of a message; `more` of them follow.
void AppendZmtpPart(std::string_view body, bool more, std::string* out);

}  // namespace kvtier
