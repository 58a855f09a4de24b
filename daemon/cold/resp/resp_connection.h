// SPDX-License-Identifier: Apache-2.0
// One connection to a server that speaks RESP: commands are sent together and answered in order.
// Sending goes on while answers are outstanding.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/cold/resp/host_addresses.h"
#include "daemon/config/resp_endpoint.h"

struct redisContext;

namespace kvtier {

// The words of a command. Views: what they name outlives the call.
using RespCommand = std::vector<std::string_view>;

struct RespReply {
  enum class Kind { kError, kInteger, kText, kList, kNothing };
  Kind kind = Kind::kNothing;
  int64_t integer = 0;
  size_t bytes = 0;  // of a text, as many as were asked for at most
  // The texts of a list, with those of lists in it, in their order.
  std::vector<std::string> texts;
  std::string error = {};  // the server's words, as a line of the log
};

// One thread, but for Interrupt. Once a call has failed, replies that were not received will not
// come; Drop, and the next Send connects again.
class RespConnection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  RespConnection(RespEndpoint endpoint, HostAddresses::Resolve resolve)
      : endpoint_(std::move(endpoint)), addresses_(endpoint_.host, std::move(resolve)) {}
  ~RespConnection() { Drop(); }
  RespConnection(const RespConnection&) = delete;
  RespConnection& operator=(const RespConnection&) = delete;

  // Sends all commands, having connected if need be. Waits for a second at most without progress:
  // for a name server, for each of the host's addresses, and for the server; with progress until a
  // second after `deadline`, or after it has connected if that is later.
  [[nodiscard]] bool Send(const std::vector<RespCommand>& commands, Time deadline);
  // The reply to the first command that has had none, in `received`. If it is a text, its beginning
  // is copied to `into`. Waits like Send, until a second after `deadline`.
  [[nodiscard]] bool Receive(std::span<std::byte> into, Time deadline, RespReply* received);
  // Why the last call that failed did so, as a line of the log that is not empty.
  [[nodiscard]] const std::string& failure() const { return failure_; }
  // Commands of a call that failed may have reached the server.
  [[nodiscard]] bool connected() const { return context_ != nullptr; }
  void Drop();
  // Has a call that is under way fail soon, and every later one. From any thread.
  void Interrupt();

  // For the functions to which hiredis passes the bytes that it has read.
  struct Incoming {
    std::span<std::byte> into;
    RespReply reply;
  };

 private:
  // Returns false, with the reason in `failure_`.
  [[nodiscard]] bool Fail(std::string_view why);
  [[nodiscard]] bool Connect();
  // Null if there is none, with the reason in `failure_`.
  [[nodiscard]] redisContext* OpenContext();
  [[nodiscard]] redisContext* OpenAddress();
  [[nodiscard]] redisContext* Checked(redisContext* context);
  [[nodiscard]] bool Authenticate();
  void Append(const RespCommand& command);
  [[nodiscard]] bool Flush(Time deadline);
  // Receives into `first`, and what goes beyond it into the chunk; `received` bytes went to
  // `first`. REQUIRES: the chunk has been used up.
  [[nodiscard]] bool Read(std::span<std::byte> first, size_t* received);
  // Receives if the chunk has been used up. False if nothing has come.
  [[nodiscard]] bool AwaitBytes();
  // Whether a text of 1 to `most` bytes is next; then its length, and its bytes are next. REQUIRES:
  // the chunk has not been used up.
  [[nodiscard]] std::optional<size_t> TextAhead(size_t most);
  [[nodiscard]] bool ReceiveText(std::span<std::byte> text);
  [[nodiscard]] bool FeedReader();
  [[nodiscard]] bool Interrupted();

  const RespEndpoint endpoint_;
  HostAddresses addresses_;
  // Bytes that were received and not parsed yet lie between the two.
  std::vector<char> chunk_;
  size_t chunk_begin_ = 0, chunk_end_ = 0;
  Incoming incoming_;
  Time end_;  // of the patience with the answer
  std::string failure_;
  std::mutex mutex_;  // guards what follows against Interrupt
  redisContext* context_ = nullptr;
  bool interrupted_ = false;
};

}  // namespace kvtier
