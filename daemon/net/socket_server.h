// SPDX-License-Identifier: Apache-2.0
// The common part of the data socket's server and the admin socket's: an acceptor, the rule for
// letting clients in, and the sessions, each of which is destroyed in an event after the one in
// which it ended.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "base/posix.h"
#include "base/result.h"
#include "daemon/net/acceptor.h"
#include "daemon/net/connection.h"
#include "daemon/net/peer.h"

namespace kvtier {

// `Session` has a method Connection& connection(). Event loop only.
template <typename Session>
class SocketServer {
 public:
  SocketServer(const SocketServer&) = delete;
  SocketServer& operator=(const SocketServer&) = delete;

  [[nodiscard]] size_t session_count() const { return sessions_.size(); }
  // Takes no more connections; sessions go on.
  void StopListening() { acceptor_.reset(); }

 protected:
  // Takes the socket if it is let in. An error is told to the peer. It must not block: it is called
  // from the acceptor's event.
  using Admit = std::function<Status(UniqueFd*)>;

  // `network` and `log` are borrowed and outlive the server.
  SocketServer(Network* network, Log* log) : network_(network), log_(log), sweep_(network->loop) {}
  // Sessions are destroyed before whatever a derived class has.
  ~SocketServer() = default;

  // Binds `path` and begins to serve. `on_refused` hears of each connection that was not let in.
  // Errors: those of Acceptor::Listen.
  [[nodiscard]] Status ListenOn(const std::string& path, mode_t mode, Admit admit,
                                std::function<void(const Error&)> on_refused) {
    KVT_ASSIGN_OR_RETURN(acceptor_,
                         Acceptor::Listen(network_->loop, log_, path, mode,
                                          /*descriptors=*/!network_->kernel_refuses_descriptors,
                                          [this, admit = std::move(admit),
                                           on_refused = std::move(on_refused)](UniqueFd socket) {
                                            const Status admitted = admit(&socket);
                                            if (admitted) return;
                                            on_refused(admitted.error());
                                            SendRefusal(socket.get(), admitted.error());
                                            const std::string user = UserOf(socket.get());
                                            network_->closer.CloseSocket(std::move(socket), user);
                                          }));
    SweepForever();
    return {};
  }

  // The server owns the session from now on; the pointer is valid until a later event than the one
  // in which Remove is called.
  Session* Add(std::unique_ptr<Session> session) {
    Session* const added = session.get();
    sessions_.emplace(added, std::move(session));
    return added;
  }
  // The session has ended. It may be on the stack, and is destroyed by a later event.
  void Remove(Session* session) {
    auto entry = sessions_.extract(session);
    KVT_CHECK(!entry.empty());
    ended_.push_back(std::move(entry.mapped()));
    if (ended_.size() > 1) return;
    network_->loop->Post(gate_.WhileOpen([this] { ended_.clear(); }));
  }
  // For destructors of derived classes: sessions must go before the members that they use.
  void DestroySessions() {
    sessions_.clear();
    ended_.clear();
  }

  template <typename Visit>
  void ForEachSession(Visit visit) const {
    for (const auto& [session, owner] : sessions_) visit(session);
  }

  Network* const network_;
  Log* const log_;

 private:
  // How often idle connections give their buffers back. A second is long against the gap between
  // two requests of a busy client, so that only idle ones pay for new buffers.
  static constexpr int64_t kSweepMs = 1000;

  void SweepForever() {
    sweep_.Start(kSweepMs, [this] {
      ForEachSession([](Session* session) { session->connection().GiveBackMemory(); });
      SweepForever();
    });
  }

  std::unordered_map<Session*, std::unique_ptr<Session>> sessions_;
  std::vector<std::unique_ptr<Session>> ended_;
  std::unique_ptr<Acceptor> acceptor_;
  Timer sweep_;
  // Last, so that it closes first: the posted destruction of sessions must not run on a dead
  // server.
  Gate gate_;
};

}  // namespace kvtier
