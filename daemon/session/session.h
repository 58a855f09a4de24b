// SPDX-License-Identifier: Apache-2.0
// One client's session: HELLO first, then requests, until the connection ends.
//
// Whatever a client does wrong costs it that call, or at most this session.
//
// Event loop only, like all that it calls. The server owns the session; the session owns its
// connection and, by its handlers, everything that the client may have used up, in the cache its
// references and private blocks. All of it is given back when the session ends, however it ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/posix.h"
#include "base/result.h"
#include "daemon/net/connection.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/session/request_handlers.h"
#include "daemon/session/session_client.h"
#include "protocol/frame.h"

namespace kvtier {

// The longest frame of a connection that has not said HELLO yet: a process that only connects must
// not be able to make the daemon allocate a full frame's buffer.
inline constexpr uint32_t kMaxHelloFrameBytes = 64u << 10;
class Session final : public ConnectionListener {
 public:
  // For `kvtierctl status`.
  struct Summary {
    SessionId id;
    std::string tenant;
    std::string client_name;
    int32_t pid = 0;
    uint32_t uid = 0;
    uint64_t references = 0;
  };

  // `on_ended` is called once, from an event, when the session is over and has closed itself in the
  // cache; the session may be destroyed from a later event on.
  Session(SessionId id, const SessionEnvironment& environment, UniqueFd socket, Peer peer,
          std::string tenant, std::function<void(Session*)> on_ended);
  ~Session() override;

  void Start();
  // Tells the client why and ends.
  void CloseWith(const Error& error) { connection_.CloseWith(error); }

  [[nodiscard]] SessionId id() const { return client_.session; }
  [[nodiscard]] const std::string& tenant() const { return client_.tenant; }
  [[nodiscard]] Connection& connection() { return connection_; }
  [[nodiscard]] Summary summary() const;
  // The credentials, for the quarantine. REQUIRES: the session has ended.
  [[nodiscard]] Peer TakePeer() { return std::move(client_.process); }

  void OnFrame(const wire::Frame& frame) override;
  void OnEnding(std::function<void()> end) override;
  void OnClosed(const Error& why) override;

 private:
  // The process has ended. Its socket normally ends by itself, unless a child has inherited it.
  void OnProcessEnded();
  void OnHello(const wire::Frame& frame);

  const SessionEnvironment& env_;
  SessionClient client_;
  const std::function<void(Session*)> on_ended_;
  Connection connection_;
  Timer hello_timeout_;
  // Until the session has ended, of the peer's pidfd.
  std::optional<FdWatch> process_;
  Timer orphaned_;
  // From HELLO on. Last, so that it goes before the connection on which it answers.
  std::unique_ptr<RequestHandlers> handlers_;
};

}  // namespace kvtier
