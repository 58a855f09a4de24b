// SPDX-License-Identifier: Apache-2.0
// The handlers of one session's requests, put together: each request goes to the one of its
// subject.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/gate.h"
#include "base/result.h"
#include "daemon/net/connection.h"
#include "daemon/session/acquire_handler.h"
#include "daemon/session/attention_handler.h"
#include "daemon/session/block_handler.h"
#include "daemon/session/kept_memory_handler.h"
#include "daemon/session/pool_handler.h"
#include "daemon/session/region_handler.h"
#include "daemon/session/replies.h"
#include "daemon/session/session_client.h"
#include "gpu/counter_page.h"
#include "protocol/frame.h"

namespace kvtier {

// Parts of the daemon that sessions use. Everything is borrowed, is there before the first session
// and outlives the last, and belongs to the event loop.
struct SessionEnvironment {
  // The configuration in effect; a reload changes it in place.
  const Config* config = nullptr;
  EventLoop* loop = nullptr;
  const Clock* clock = nullptr;
  Log* log = nullptr;
  Network* network = nullptr;
  Cache* cache = nullptr;
  ModelRegistry* models = nullptr;
  ServerCounters* counters = nullptr;
  Tracer* tracer = nullptr;  // null: nothing is recorded
  const wire::DevicesReply* devices = nullptr;
  AttentionService* attention = nullptr;  // null: off
  KeptMemories* kept_memories = nullptr;
  FormerClients* former_clients = nullptr;  // null: there were none
  bool pools_are_kept = false;              // so that sessions can be resumed
  // Chosen at random, so that clients can tell that the daemon was started anew.
  uint64_t daemon_generation = 0;
};

// Event loop only. It lives from HELLO until the session is destroyed, and owns all that the client
// may have used up, but for blocks that the cache counts: attached pools, workspaces, running
// attention.
class RequestHandlers {
 public:
  // Opens the session in the cache. `client` and `connection` outlive this.
  RequestHandlers(const SessionEnvironment& environment, const SessionClient* client,
                  Connection* connection, std::shared_ptr<CounterPage> counters);
  RequestHandlers(const RequestHandlers&) = delete;
  RequestHandlers& operator=(const RequestHandlers&) = delete;

  // Answers the request, or has an event answer it.
  void Dispatch(const wire::Frame& frame);
  // Calls `end` when no copy to or from the client's own memory is under way any more.
  void EndTransfers(std::function<void()> end);
  // Gives back all that the session holds. Jobs are told to stop before the references that protect
  // their blocks are dropped. To be called once.
  void EndSession();

  [[nodiscard]] const AttachedPools& pools() const { return pools_; }

 private:
  // If the frame is a Message, decodes it and has the handler answer it, or refuses what cannot be
  // decoded. False if it is another message.
  template <typename Handler, typename Message>
  [[nodiscard]] bool HandleOne(const wire::Frame& frame, Handler* handler,
                               Status (Handler::*answer)(const Call&, const Message&));
  // The same for several messages of one handler.
  template <typename Handler, typename... Messages>
  [[nodiscard]] bool Handle(const wire::Frame& frame, Handler* handler,
                            Status (Handler::*... answers)(const Call&, const Messages&));

  Cache& cache_;
  const SessionClient& client_;
  AttachedPools pools_;
  Replies replies_;
  PoolHandler pool_handler_;
  BlockHandler blocks_;
  AcquireHandler acquires_;
  RegionHandler regions_;
  AttentionHandler attention_;
  KeptMemoryHandler kept_memory_;
  Gate gate_;
};

}  // namespace kvtier
