// SPDX-License-Identifier: Apache-2.0
// The socket for `kvtierctl`: for root and the daemon's own user only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/admin/admin_operations.h"
#include "daemon/net/acceptor.h"
#include "daemon/net/connection.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"

namespace kvtier {

inline constexpr size_t kMaxAdminConnections = 16;
// Requests of one connection under way at once; the next is not read before one is answered.
inline constexpr int kMaxAdminCalls = 4;

// All are borrowed and outlive the server.
class AdminServer {
 public:
  AdminServer(EventLoop* loop, Log* log, PeerInspector* peers, AdminOperations* operations);
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  // Binds `path`, mode 0600, and begins to serve. Errors: those of Acceptor::Listen.
  [[nodiscard]] Status Listen(const std::string& path);

 private:
  class Session;
  void OnConnection(UniqueFd socket);
  [[nodiscard]] Status Admit(UniqueFd* socket);
  void OnSessionEnded(Session* session);

  EventLoop* const loop_;
  Log* const log_;
  PeerInspector* const peers_;
  AdminOperations* const operations_;
  std::list<std::shared_ptr<Session>> sessions_;
  // Ended, to be destroyed by the next event.
  std::vector<std::shared_ptr<Session>> ended_;
  Timer bury_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace kvtier
