// SPDX-License-Identifier: Apache-2.0
// One session's requests about models and pools, and about itself: REGISTER_MODEL, DEVICES, ATTACH,
// DETACH, RESUME, STATS and PING.
#pragma once

#include <cstdint>
#include <deque>

#include "base/gate.h"
#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/net/descriptor_closer.h"
#include "daemon/net/retries.h"
#include "daemon/session/models.h"
#include "daemon/session/replies.h"
#include "daemon/session/session_client.h"
#include "protocol/session_messages.h"
#include "tiers/cache.h"

namespace kvtier {

class AttentionService;
class FormerClients;

// Event loop only. It owns the session's holds on models and the attaches that wait for memory;
// BlockHandler says how requests are answered.
class PoolHandler {
 public:
  // The objects that it works with besides the cache. Everything is borrowed and outlives the
  // handler.
  struct Environment {
    const Config* config = nullptr;
    Retries* retries = nullptr;
    Log* log = nullptr;
    ModelRegistry* models = nullptr;
    const wire::DevicesReply* devices = nullptr;
    AttentionService* attention = nullptr;    // null: off
    FormerClients* former_clients = nullptr;  // null: there were none
    DescriptorCloser* closer = nullptr;
  };
  PoolHandler(const SessionClient* client, AttachedPools* pools, Replies* replies, Cache* cache,
              const Environment& environment)
      : client_(*client), pools_(*pools), replies_(*replies), cache_(*cache), env_(environment) {}

  Status OnRegisterModel(const Call& call, const wire::RegisterModel& request);
  Status OnDevices(const Call& call, const wire::Devices& request);
  Status OnAttach(const Call& call, const wire::Attach& request);
  Status OnDetach(const Call& call, const wire::Detach& request);
  // A client comes back after the daemon was started anew, and takes back its blocks.
  Status OnResume(const Call& call, const wire::Resume& request);
  Status OnStats(const Call& call, const wire::Stats& request);
  Status OnPing(const Call& call, const wire::Ping& request);

 private:
  // `waited`: it is not the first try.
  [[nodiscard]] Status TryAttach(const Call& call, const wire::Attach& request, bool waited);
  // After the cache's `error`: tries again soon if memory is on its way back, else returns it.
  [[nodiscard]] Status AttachLater(const Call& call, const wire::Attach& request,
                                   const Error& error);
  Retries::Outcome AttachAgain(const Call& call, const wire::Attach& request, const Error& error,
                               bool over);
  // The pool's memory is ready: only now does the client get its descriptor.
  void OnAttached(const Call& call, const PoolInfo& pool, const AttachedPool& attached);

  const SessionClient& client_;
  AttachedPools& pools_;
  Replies& replies_;
  Cache& cache_;
  const Environment env_;
  // The models that the client registered last, so that it can attach them.
  std::deque<ModelHold> registered_;
  uint32_t attaches_waiting_ = 0;  // for memory of pools that are closed
  // Last, so that it closes before anything that the cache's answers would use is destroyed.
  Gate gate_;
};

}  // namespace kvtier
