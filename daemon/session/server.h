// SPDX-License-Identifier: Apache-2.0
// The socket for inference processes: who may come in, and the sessions of those who did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/net/peer.h"
#include "daemon/net/socket_server.h"
#include "daemon/session/quarantine.h"
#include "daemon/session/session.h"

namespace kvtier {

// Event loop only. It owns the sessions, and the quarantine of those that have ended. A process is
// admitted by its credentials alone: by its user or group it belongs to a tenant, or it is refused
// before a byte of it is read.
class Server : public SocketServer<Session> {
 public:
  // Everything that is borrowed outlives the server.
  Server(const SessionEnvironment& environment, PeerInspector* peers, TenantMap tenants,
         Quarantine::KernelsRemain kernels_remain = {});
  ~Server();

  // Binds the socket and begins to serve. Errors: those of Acceptor::Listen.
  [[nodiscard]] Status Listen();
  // For connections from now on; sessions keep the tenants that they have.
  void SetTenants(TenantMap tenants) { tenants_ = std::move(tenants); }
  // Takes no more connections; sessions go on.
  void StopListening() {
    draining_ = true;
    SocketServer::StopListening();
  }
  [[nodiscard]] bool draining() const { return draining_; }
  // Tells every client why and ends its session. A client that takes nothing of it is cut off after
  // the slow-reader time-out.
  void CloseSessions(const Error& why);

  // At most `limit` of them (any), by id.
  [[nodiscard]] std::vector<Session::Summary> Sessions(size_t limit = SIZE_MAX) const;
  // Ended sessions whose processes live on, with their private blocks.
  [[nodiscard]] size_t quarantined_sessions() const { return quarantine_.sessions(); }

 private:
  // Finds out whose process it is, and opens a session if its tenant may have one; takes `*socket`
  // only then. Errors, which the peer is told: kLimitExceeded "too_many_clients"; those of
  // PeerInspector::Inspect and of TenantMap::TenantOf.
  [[nodiscard]] Status AdmitSocket(UniqueFd* socket);
  // Connections that tenants of the configuration have not got yet, beside this one.
  [[nodiscard]] size_t PlacesKeptFrom(const std::string& tenant) const;
  // Called by the session, which is still on the stack: it is destroyed by a later event.
  void OnSessionEnded(Session* session);

  const SessionEnvironment env_;
  PeerInspector& peers_;
  TenantMap tenants_;
  std::unordered_map<std::string, size_t> connected_;  // sessions, by tenant
  Quarantine quarantine_;
  // Session ids count up from 1 and are never used again, so that a late answer for an ended
  // session cannot reach another one.
  uint64_t last_session_ = 0;
  bool draining_ = false;
};

}  // namespace kvtier
