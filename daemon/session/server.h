// SPDX-License-Identifier: Apache-2.0
// The socket for inference processes: who may come in, and the sessions of those who did.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/net/acceptor.h"
#include "daemon/net/peer.h"
#include "daemon/session/models.h"
#include "daemon/session/quarantine.h"
#include "daemon/session/server_counters.h"
#include "daemon/session/session.h"

namespace kvtier {

// What the server needs; borrowed, outlives it.
struct ServerEnvironment {
  EventLoop* loop = nullptr;
  Cache* cache = nullptr;
  Log* log = nullptr;
  PeerInspector* peers = nullptr;
  const Config* config = nullptr;
  wire::DevicesReply devices;  // those of `cache`, by DeviceIndex
  Tracer* tracer = nullptr;    // null: nobody wants to know
  uint64_t daemon_generation = 0;
  AttentionService* attention = nullptr;  // null: off
  Quarantine::Outlasts outlasts = {};     // see Quarantine
};

class Server {
 public:
  Server(const ServerEnvironment& environment, TenantMap tenants);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Binds the socket and begins to serve. Errors: those of Acceptor::Listen.
  [[nodiscard]] Status Listen();
  // For connections from now on; sessions keep the tenants that they have.
  void SetTenants(TenantMap tenants) { tenants_ = std::move(tenants); }
  // Takes no more connections; sessions go on.
  void StopListening() { acceptor_.reset(); }
  // Tells every client why and ends its session, within the slow-reader time-out.
  void CloseSessions(const Error& why);

  [[nodiscard]] size_t session_count() const { return sessions_.size(); }
  // At most `limit` of them (any), by id.
  [[nodiscard]] std::vector<Session::Summary> Sessions(size_t limit = SIZE_MAX) const;
  [[nodiscard]] const ServerCounters& counters() const { return counters_; }
  [[nodiscard]] const ModelRegistry& models() const { return models_; }
  // Ended sessions whose processes live on, with their private blocks.
  [[nodiscard]] size_t quarantined_sessions() const { return quarantine_.sessions(); }

 private:
  void OnConnection(UniqueFd socket);
  // Who it is and whether he may come in.
  [[nodiscard]] Status Admit(UniqueFd* socket);
  void OnSessionEnded(SessionId id);

  const ServerEnvironment environment_;
  TenantMap tenants_;
  ModelRegistry models_;
  ServerCounters counters_;
  SessionServices services_;
  Quarantine quarantine_;
  uint64_t last_session_ = 0;
  std::unordered_map<SessionId, std::shared_ptr<Session>> sessions_;
  // Ended, to be destroyed by the next event.
  std::vector<std::shared_ptr<Session>> ended_;
  Timer bury_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace kvtier
