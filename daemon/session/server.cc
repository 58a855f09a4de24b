// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/session/kept_memories.h"
#include "tiers/cache.h"

namespace kvtier {
namespace {

// Any local user may connect. The file's mode is not the access check: the kernel's credentials of
// the connecting process decide who is served.
constexpr mode_t kSocketMode = 0666;

constexpr size_t kMostPlacesKept = 16;

}  // namespace

Server::Server(const SessionEnvironment& environment, PeerInspector* peers, TenantMap tenants,
               Quarantine::KernelsRemain kernels_remain)
    : SocketServer(environment.network, environment.log),
      env_(environment),
      peers_(*peers),
      tenants_(std::move(tenants)),
      quarantine_(
          env_.loop, env_.log, [this](SessionId id) { env_.cache->ReleaseQuarantine(id); },
          std::move(kernels_remain), [this](SessionId id) { return env_.cache->Withholds(id); }) {}

// The sessions hold references to members of this class, so that they go before its members do.
Server::~Server() { DestroySessions(); }

Status Server::Listen() {
  return ListenOn(
      env_.config->server.socket, kSocketMode,
      [this](UniqueFd* socket) { return AdmitSocket(socket); },
      [this](const Error& refused) {
        env_.counters->CountRefusal(refused);
        log_->Warning("server.client_refused", "{}", refused.ToString());
      });
}

Status Server::AdmitSocket(UniqueFd* socket) {
  ++env_.counters->connections;
  const uint32_t max_clients = env_.config->server.max_clients;
  if (session_count() >= max_clients) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_clients",
                     fmt::format("{} are connected, the most allowed", max_clients));
  }
  // The tenant is determined before a session exists: nothing is read from a process that has none.
  KVT_ASSIGN_OR_RETURN(Peer peer, peers_.Inspect(socket->get()));
  KVT_ASSIGN_OR_RETURN(std::string tenant, tenants_.TenantOf(peer));
  if (session_count() + PlacesKeptFrom(tenant) >= max_clients) {
    return MakeError(ErrorCode::kLimitExceeded, "too_many_clients",
                     fmt::format("{} of {} are connected, and the other places are kept for other "
                                 "tenants",
                                 session_count(), max_clients));
  }
  Session* const session = Add(std::make_unique<Session>(
      SessionId(++last_session_), env_, std::move(*socket), std::move(peer), std::move(tenant),
      [this](Session* ended) { OnSessionEnded(ended); }));
  ++connected_[session->tenant()];
  session->Start();
  return {};
}

// As many as an engine with eight GPUs needs, or a half of all, shared out.
size_t Server::PlacesKeptFrom(const std::string& tenant) const {
  const std::vector<TenantConfig>& tenants = env_.config->tenants;
  if (tenants.empty()) return 0;
  const size_t each =
      std::min<size_t>(kMostPlacesKept, env_.config->server.max_clients / (2 * tenants.size()));
  size_t kept = 0;
  for (const TenantConfig& other : tenants) {
    const auto found = connected_.find(other.name);
    const size_t taken = found == connected_.end() ? 0 : found->second;
    if (other.name != tenant) kept += each - std::min(each, taken);
  }
  return kept;
}

void Server::OnSessionEnded(Session* session) {
  env_.kept_memories->OnSessionEnded(session->id());
  const auto connected = connected_.find(session->tenant());
  if (--connected->second == 0) connected_.erase(connected);
  // The process has mapped the pool and may still write to blocks that only it wrote to, so that
  // those stay out of use until it has ended. A session that has given back all that it held needs
  // no quarantine.
  if (env_.cache->Withholds(session->id())) {
    quarantine_.Add(session->id(), session->TakePeer());
  }
  Remove(session);
}

void Server::CloseSessions(const Error& why) {
  ForEachSession([&](Session* session) { session->CloseWith(why); });
}

std::vector<Session::Summary> Server::Sessions(size_t limit) const {
  std::vector<Session::Summary> summaries;
  ForEachSession([&](const Session* session) {
    if (summaries.size() < limit) summaries.push_back(session->summary());
  });
  std::ranges::sort(summaries, {}, &Session::Summary::id);
  return summaries;
}

}  // namespace kvtier
