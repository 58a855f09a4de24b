// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvtier {
namespace {

// Anyone may connect; who is served is decided by credentials.
constexpr mode_t kSocketMode = 0666;

}  // namespace

Server::Server(const ServerEnvironment& environment, TenantMap tenants)
    : environment_(environment),
      tenants_(std::move(tenants)),
      models_(environment.config->server.max_models_per_tenant),
      services_{.loop = environment.loop,
                .cache = environment.cache,
                .models = &models_,
                .log = environment.log,
                .counters = &counters_,
                .config = &environment.config->server,
                .tracer = environment.tracer,
                .max_references = environment.config->cache.max_references_per_session,
                .daemon_generation = environment.daemon_generation,
                .devices = &environment_.devices,
                .attention = environment.attention},
      quarantine_(
          environment.loop, environment.log,
          [this](SessionId id) { environment_.cache->ReleaseQuarantine(id); },
          environment.outlasts),
      bury_(environment.loop) {}

Status Server::Listen() {
  KVT_ASSIGN_OR_RETURN(
      acceptor_,
      Acceptor::Listen(environment_.loop, environment_.log, environment_.config->server.socket,
                       kSocketMode, [this](UniqueFd socket) { OnConnection(std::move(socket)); }));
  return {};
}

void Server::OnConnection(UniqueFd socket) {
  ++counters_.connections;
  if (const Status admitted = Admit(&socket); !admitted) {
    counters_.CountRefusal(admitted.error());
    environment_.log->Warning("server.client_refused", "{}", admitted.error().ToString());
    SendRefusal(socket.get(), admitted.error());
  }
}

Status Server::Admit(UniqueFd* socket) {
  const uint32_t max_clients = environment_.config->server.max_clients;
  if (sessions_.size() >= max_clients) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_clients",
                     fmt::format("{} are connected, the most allowed", max_clients));
  }
  KVT_ASSIGN_OR_RETURN(Peer peer, environment_.peers->Inspect(socket->get()));
  KVT_ASSIGN_OR_RETURN(std::string tenant, tenants_.TenantOf(peer));
  const SessionId id(++last_session_);
  auto session = std::make_shared<Session>(id, services_, std::move(*socket), std::move(peer),
                                           std::move(tenant),
                                           [this](SessionId ended) { OnSessionEnded(ended); });
  session->Start();
  sessions_.emplace(id, std::move(session));
  return {};
}

void Server::OnSessionEnded(SessionId id) {
  auto entry = sessions_.extract(id);
  KVT_CHECK(!entry.empty());
  std::shared_ptr<Session>& session = entry.mapped();
  if (session->had_private_blocks()) {
    quarantine_.Add(id, session->TakePeer());
  } else {
    environment_.cache->ReleaseQuarantine(id);
  }
  ended_.push_back(std::move(session));
  bury_.Start(0, [this] { ended_.clear(); });
}

void Server::CloseSessions(const Error& why) {
  for (const auto& [id, session] : sessions_) session->CloseWith(why);
}

std::vector<Session::Summary> Server::Sessions(size_t limit) const {
  std::vector<Session::Summary> summaries;
  for (const auto& [id, session] : sessions_) {
    if (summaries.size() == limit) break;
    summaries.push_back(session->summary());
  }
  std::ranges::sort(summaries, {}, &Session::Summary::id);
  return summaries;
}

}  // namespace kvtier
