// SPDX-License-Identifier: Apache-2.0
// One connection to a server that speaks RESP: commands are sent together and answered in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct redisContext;

namespace kvtier {

struct RespEndpoint {
  std::string host;  // or, without a port, a path
  int port = 0;
  std::string user;
  std::string password;

  // "HOST:PORT", "[ADDRESS]:PORT" or an absolute path; nothing if it is none of these.
  [[nodiscard]] static std::optional<RespEndpoint> Parse(std::string_view text);
};

// The words of a command. Views: what they name outlives the call.
using RespCommand = std::vector<std::string_view>;

struct RespReply {
  enum class Kind { kError, kInteger, kText, kNothing };
  Kind kind = Kind::kNothing;
  int64_t integer = 0;
  std::string_view text;
};

// One thread, but for Interrupt.
class RespConnection {
 public:
  explicit RespConnection(RespEndpoint endpoint) : endpoint_(std::move(endpoint)) {}
  ~RespConnection() { Drop(); }
  RespConnection(const RespConnection&) = delete;
  RespConnection& operator=(const RespConnection&) = delete;

  // Sends all commands, having connected if need be, then calls `answered` with the position of
  // each command and its reply, in order. False if the connection failed: replies that were not
  // told of will not come. Waits for a second at most without progress.
  [[nodiscard]] bool Run(const std::vector<RespCommand>& commands,
                         const std::function<void(size_t, const RespReply&)>& answered);
  // Has a Run that is under way fail soon, and every later one. From any thread.
  void Interrupt();

 private:
  [[nodiscard]] bool Connect();
  [[nodiscard]] bool Authenticate();
  void Append(const RespCommand& command);
  [[nodiscard]] bool Next(const std::function<void(const RespReply&)>& answered);
  [[nodiscard]] bool Interrupted();
  void Drop();

  const RespEndpoint endpoint_;
  std::mutex mutex_;  // guards what follows against Interrupt
  redisContext* context_ = nullptr;
  bool interrupted_ = false;
};

}  // namespace kvtier
