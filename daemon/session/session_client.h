// SPDX-License-Identifier: Apache-2.0
// The client of one session, as the daemon knows it, and the pools and regions that it may name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/gate.h"
#include "base/ids.h"
#include "base/result.h"
#include "daemon/net/peer.h"
#include "daemon/session/models.h"
#include "protocol/model_record.h"
#include "tiers/types/session_identity.h"

namespace kvtier {

class LentDescriptor;

// The session owns it. The tenant follows from the credentials alone; only `name` is the client's
// own word.
struct SessionClient {
  SessionId session;
  std::string tenant;
  Peer process;
  SessionSecret secret = {};  // zeros: the session cannot be resumed
  std::string name = {};      // for the log and for operators

  // The next daemon knows the session under this identity.
  [[nodiscard]] SessionIdentity Identity() const {
    return {.process = IdentityOf(process.pid),
            .uid = process.uid,
            .session = session,
            .secret = secret};
  }
};

// A pool or region that a session may name in its requests.
struct AttachedPool {
  ModelHold model;
  uint32_t group = 0;
  uint32_t device = 0;
  NamespaceId namespace_id;
  uint32_t region_blocks = 0;                   // not 0: a region, and no pool
  std::shared_ptr<const void> share = nullptr;  // a region's, of Network::regions
  uint32_t attaches = 0;                        // of a pool, that DETACH has not taken back
  // Blocks that the client holds there, as this session has counted them. For status only; the
  // cache counts for itself and enforces the limit.
  uint64_t held = 0;
  // A pool's, while replies that carry it wait to be sent: all the same one, because it takes a
  // place in the process's table.
  std::weak_ptr<const LentDescriptor> descriptor = {};
  // Closes with the pool's last DETACH, so that a later attachment is told from this one.
  std::shared_ptr<Gate> attachment = nullptr;

  [[nodiscard]] bool is_region() const { return region_blocks > 0; }
  [[nodiscard]] const KvGroup& kv_group() const { return model->record.groups[group]; }
};

// Event loop only. Pool ids are small numbers that a client can guess: a pool that is not in this
// table is refused, even if it exists, so that a client reaches no other tenant's pool.
class AttachedPools {
 public:
  // Errors: kNotFound "pool_not_attached".
  [[nodiscard]] Result<const AttachedPool*> Find(PoolId id) const;
  // Errors: also kInvalidArgument "pool_is_region".
  [[nodiscard]] Result<const AttachedPool*> FindPool(PoolId id) const;
  // Errors: also kInvalidArgument "not_a_region".
  [[nodiscard]] Result<const AttachedPool*> FindRegion(PoolId id) const;
  // REQUIRES: the session has it, as for the following.
  [[nodiscard]] AttachedPool& at(PoolId id) { return pools_.at(id); }
  [[nodiscard]] const AttachedPool& at(PoolId id) const { return pools_.at(id); }
  void Erase(PoolId id) { pools_.erase(id); }

  // The pool as it was known before, or `pool` if the session did not have it.
  AttachedPool& Add(PoolId id, AttachedPool pool) {
    return pools_.try_emplace(id, std::move(pool)).first->second;
  }

  [[nodiscard]] const std::unordered_map<PoolId, AttachedPool>& all() const { return pools_; }
  // AttachedPool::held of all pools.
  [[nodiscard]] uint64_t held() const;

 private:
  std::unordered_map<PoolId, AttachedPool> pools_;
};

}  // namespace kvtier
