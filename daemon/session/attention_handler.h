// SPDX-License-Identifier: Apache-2.0
// One session's requests of a client that launches no kernels of its own: WORKSPACE,
// WORKSPACE_CLOSE and ATTEND.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/gate.h"
#include "base/result.h"
#include "daemon/attention/attend_plan.h"
#include "daemon/attention/attention_service.h"
#include "daemon/session/replies.h"
#include "daemon/session/session_client.h"
#include "protocol/session_messages.h"
#include "tiers/cache.h"

namespace kvtier {

// Jobs of one session that may be under way at once: enough to keep the device busy while replies
// travel, and few enough that a client's jobs cannot delay another's by more than a few of them.
inline constexpr size_t kMaxAttendsInFlight = 4;

// Event loop only. It owns the session's workspaces and jobs; BlockHandler says how requests are
// answered.
class AttentionHandler {
 public:
  // Everything is borrowed and outlives the handler. `service` may be null: attention is off.
  AttentionHandler(const SessionClient* client, const AttachedPools* pools, Replies* replies,
                   const Cache* cache, AttentionService* service, const wire::DevicesReply* devices)
      : client_(*client),
        pools_(*pools),
        replies_(*replies),
        cache_(*cache),
        service_(service),
        devices_(*devices) {}

  Status OnWorkspace(const Call& call, const wire::Workspace& request);
  Status OnWorkspaceClose(const Call& call, const wire::WorkspaceClose& request);
  Status OnAttend(const Call& call, const wire::Attend& request);
  // The session has ended and the results are of no use. Jobs that have begun notice the flag and
  // stop; their memory is kept until then.
  void CancelAttends();

 private:
  // Memory shared with the client, on one device. The client can write to it at any time, also
  // while the daemon computes from it: its contents are never trusted, and no addresses are read
  // from it.
  struct SharedWorkspace {
    std::shared_ptr<DevicePool> memory;
    uint32_t device = 0;
  };

  // The pool, if attention is computed there. Errors: those of AttachedPools::FindPool and
  // AttentionService::CheckReady; kUnsupported "attend_off".
  [[nodiscard]] Result<const AttachedPool*> FindAttended(PoolId pool) const;
  // The request's, on the device of its pool. Errors: kNotFound "unknown_workspace",
  // kInvalidArgument "workspace_other_device".
  [[nodiscard]] Result<std::shared_ptr<DevicePool>> FindWorkspace(
      const wire::Attend& request, const AttachedPool& attached) const;
  [[nodiscard]] Status OpenWorkspace(const Call& call, const wire::Workspace& request);
  void OnAttended(const Call& call, const AttentionJob* job, Result<uint64_t> compute_ns);

  const SessionClient& client_;
  const AttachedPools& pools_;
  Replies& replies_;
  const Cache& cache_;
  AttentionService* const service_;
  const wire::DevicesReply& devices_;
  // By their numbers.
  std::unordered_map<uint32_t, SharedWorkspace> workspaces_;
  std::vector<std::shared_ptr<AttentionJob>> attends_;
  // Last, so that it closes before anything that the service's answers would use is destroyed.
  Gate gate_;
};

}  // namespace kvtier
