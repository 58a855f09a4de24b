// SPDX-License-Identifier: Apache-2.0
// The operations of the admin socket.
//
//   {"op":"status"}                    all of metrics/status_json.h
//   {"op":"config"}                    the configuration in effect
//   {"op":"config_defaults"}           the configuration without a file
//   {"op":"inspect","hashes":[H]}      one block, and why it was last dropped and missed
//   {"op":"pin","hashes":[H,...],"ttl_ms":3600000}  keeps them; 0 lets go of them
//   {"op":"evict","hashes":[H,...]}    forgets them, durably
//   {"op":"models"}                    the models that blocks are of, with their epochs
//   {"op":"forget","model":"m","epoch":"e"}  forgets all blocks of such models, durably
//   {"op":"erase","tenant":"t","before_ms":0}  destroys its keys and forgets its blocks, for good;
//                                      "before_ms": only of whole hours before; "without_proof"
//   {"op":"ls","cursor":0,"limit":100} a stretch of all blocks, and the cursor for the next; "all":
//                                      waits for the end of the adoption, as pin, evict, forget
//                                      and erase of a tenant that is not known yet do
//   {"op":"trace","cursor":0,"limit":100,"since_ms":60000} the latest events, see trace_operation.h
//   {"op":"verify"}                    reads every persisted block back and checks it;
//                                      "gone": the first of the disk's files that was deleted
//   {"op":"drain"}                     writes blocks that should survive a restart to disk
//   {"op":"drain_before_stop"}         the same until drain.deadline; the service manager is told
//   {"op":"settle","timeout_ms":60000} replies when nothing is under way or to be adopted
//   {"op":"stop","release":false}      as SIGTERM; the end of the connection is the reply
//
// The operations on blocks and models take "tenant", "model" (its name or the first digits of its
// fingerprint) and "epoch" (the revision of its weights); ls and evict take "tier", ls takes
// "prefix" of the hash. The last four, inspect, pin, evict, forget and erase send progress at least
// every kAdminProgressMs.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/admin/admin_operation.h"
#include "daemon/admin/admin_request.h"
#include "daemon/admin/trace_ring.h"
#include "daemon/config/config.h"
#include "daemon/keeper/descriptor_store.h"
#include "daemon/metrics/metrics_snapshot.h"
#include "daemon/resources/disk_tier.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/supervision.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/models.h"
#include "daemon/session/server.h"

namespace kvtier {

// Event loop only. It owns the operations that are under way; their calls belong to the
// connections. Every operation works in short steps, because an administrator's question must not
// delay the requests of inference processes.
class AdminOperations {
 public:
  // Parts of the daemon that operations look into and act on. Everything is borrowed and outlives
  // the operations.
  struct Environment {
    OperationBasics basics;
    const Config* config = nullptr;  // in effect
    Log* log = nullptr;
    const TraceRing* trace = nullptr;  // null: nothing is recorded
    ServiceManager* manager = nullptr;
    DescriptorStore* descriptors = nullptr;
    const ModelRegistry* models = nullptr;
    KeptMemories* kept_memories = nullptr;
    const Server* server = nullptr;
    const MetricsSources* metrics = nullptr;
    DiskTier* disk = nullptr;
  };
  explicit AdminOperations(const Environment& environment);
  ~AdminOperations();
  AdminOperations(const AdminOperations&) = delete;
  AdminOperations& operator=(const AdminOperations&) = delete;

  // Errors, through the call: kInvalidArgument "bad_json", "bad_request", "unknown_op"; kTimeout
  // "not_settled"; those of block_operations.h.
  void Start(std::string_view request_json, std::shared_ptr<AdminCall> call);

 private:
  // Answers operations that take one event only. False if the operation is not one of those; the
  // call is then untouched.
  [[nodiscard]] bool AnswerAtOnce(const AdminRequestBody& request, AdminCall* call);
  [[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeOperation(
      const AdminRequestBody& request, const std::shared_ptr<AdminCall>& call);

  const Environment env_;
  // Ended operations are erased when the next begins, since an operation must not be destroyed
  // within its own call.
  std::vector<std::unique_ptr<AdminOperation>> operations_;
};

// {"schema":"kvtier.config/1","section":{"key":value as in the file,...},...}.
[[nodiscard]] std::string ConfigJson(const Config& config);

// "ls": up to `limit` blocks from `cursor` on, gathered in steps short enough for the event loop.
// The reply carries the cursor for the next. Errors: kInvalidArgument "bad_request".
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeListing(const OperationBasics& basics,
                                                                  const ModelRegistry* models,
                                                                  const AdminRequestBody& request,
                                                                  std::shared_ptr<AdminCall> call);

// "inspect", "pin" and "evict" look for their hashes in every namespace that fits. Errors:
// kInvalidArgument "bad_request", and as noted.
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeInspection(
    const OperationBasics& basics, const ModelRegistry* models, const AdminRequestBody& request,
    std::shared_ptr<AdminCall> call);
// kLimitExceeded "pin_limit": blocks that were pinned before it stay pinned. A time of 0 unpins.
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakePinning(const OperationBasics& basics,
                                                                  const ModelRegistry* models,
                                                                  const AdminRequestBody& request,
                                                                  std::shared_ptr<AdminCall> call);
// Replies when a restart cannot bring the blocks back. kIoError if the disk refuses.
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeEviction(const OperationBasics& basics,
                                                                   const ModelRegistry* models,
                                                                   const AdminRequestBody& request,
                                                                   std::shared_ptr<AdminCall> call);

// "models": replies with
//   {"schema":"kvtier.models/1","now_s":,"models":[{"tenant":,"model_name":,"epoch":,"model":,
//    "in_use":,"blocks":,"bytes":,"tiers":{"pool":,"host":,"disk":},"last_use_s":},...]}
// One for each tenant, name and epoch, and one for each fingerprint whose record the registry does
// not know: its name and epoch are empty. "in_use": a session holds it. "last_use_s": 0 without
// blocks.
[[nodiscard]] std::unique_ptr<AdminOperation> MakeModelListing(const OperationBasics& basics,
                                                               const ModelRegistry* models,
                                                               const AdminRequestBody& request,
                                                               std::shared_ptr<AdminCall> call);

// "forget": blocks that sessions hold, that are pinned or on the move stay. Replies, when a restart
// cannot bring the others back, with
//   {"schema":"kvtier.forget/1","models":,"evicted":,"absent":,"referenced":,"pinned":,"moving":}
// "models": how many fingerprints were meant. Errors: kInvalidArgument "bad_request" without a
// model; kNotFound "unknown_model"; kIoError if the disk refuses.
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeForgetting(
    const OperationBasics& basics, const ModelRegistry* models, const AdminRequestBody& request,
    std::shared_ptr<AdminCall> call);

// "erase": the keys are destroyed when it begins. Replies, when no restart brings anything back,
// with
//   {"schema":"kvtier.erase/1","tenant":,"before_ms":,"proven":,"keys":,"blocks":{"pool":,"host":,
//    "disk":},"bytes":{...},"referenced":,"moving":,"seconds":}
// "proven" is false if the disk is not encrypted. Errors: kInvalidArgument "bad_request";
// kUnsupported "not_encrypted" without request.without_proof; kIoError if the disk refuses.
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeErasure(const OperationBasics& basics,
                                                                  const Config* config, Log* log,
                                                                  const AdminRequestBody& request,
                                                                  std::shared_ptr<AdminCall> call);

// Events from request.cursor on, or, where that is 0, of the last request.since_ms (0: all there
// are); request.limit at most. Replies with
//   {"schema":"kvtier.trace/1","now_us":,"wall_ms":,"cursor":,"end":,"lost":,"sessions":[{"id":,
//    "tenant":,"client":,"pid":},...],"events":[{...},...]}
// "cursor" is for the next call; when it equals "end", there are no more. "lost" says how many
// events from request.cursor on had been overwritten. Times are monotonic; now_us and wall_ms name
// the same moment. Members of an event that are zero are left out. Errors: kUnsupported
// "trace_off", kInvalidArgument "bad_request".
[[nodiscard]] Result<std::unique_ptr<AdminOperation>> MakeTraceListing(
    const OperationBasics& basics, const TraceRing* ring, const Server* server,
    const AdminRequestBody& request, std::shared_ptr<AdminCall> call);

}  // namespace kvtier
