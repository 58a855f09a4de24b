// SPDX-License-Identifier: Apache-2.0
// A client comes back after the daemon was started anew, and takes back its blocks.
#include <algorithm>
#include <numeric>

#include "daemon/session/former_clients.h"
#include "daemon/session/session.h"

namespace kvtier {

SessionIdentity Session::Identity() const {
  return {.process = IdentityOf(peer_.pid), .uid = peer_.uid, .session = id_, .secret = secret_};
}

// The pool is one of the session's tenant, and the former session had it: so nothing that is taken
// back here was another tenant's.
Status Session::OnResume(const Call& call, const wire::Resume& request) {
  KVT_RETURN_IF_ERROR(FindPool(request.pool));
  const std::optional<SessionId> holdings =
      services_.former_clients == nullptr
          ? std::nullopt
          : services_.former_clients->Find(request.pool, request.session, request.secret, peer_);
  if (!holdings) {
    return MakeError(ErrorCode::kPermissionDenied, "unknown_session",
                     "this process had no such session with that secret in the pool");
  }
  const auto references = std::accumulate(
      request.claims.begin(), request.claims.end(), uint64_t{0},
      [](uint64_t sum, const ResumeClaim& claim) { return sum + claim.references; });
  // A claim's price is its references: each is counted, up to the session's limit.
  connection_.Spend(static_cast<uint32_t>(
      std::min<uint64_t>(references, services_.config->cache.max_references_per_session)));
  wire::ResumeReply reply{
      .outcomes = services_.cache->Resume(*holdings, id_, request.pool, request.claims)};
  for (size_t i = 0; i < reply.outcomes.size(); ++i) {
    if (reply.outcomes[i] == ResumeOutcome::kPrivate) had_private_blocks_ = true;
    if (reply.outcomes[i] == ResumeOutcome::kLost) continue;
    pools_.at(request.pool).held +=
        reply.outcomes[i] == ResumeOutcome::kPrivate ? 1 : request.claims[i].references;
  }
  if (!request.more) {
    services_.former_clients->OnResumed(*holdings);
    services_.log->Info("session.resumed", "session {} goes on with what session {} held",
                        id_.value, request.session.value);
  }
  Reply(call, reply);
  return {};
}

}  // namespace kvtier
