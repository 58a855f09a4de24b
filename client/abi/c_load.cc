// SPDX-License-Identifier: Apache-2.0
// The C ABI: waiting for what an acquire has loaded.

#include <fmt/format.h>

#include <memory>

#include "client/abi/c_common.h"

namespace kvtier::client {
namespace {

using AttachmentPtr = std::shared_ptr<const Attachment>;

Result<AttachmentPtr> AttachmentOf(kvt_pool* pool, kvt_load load) {
  KVT_RETURN_IF_ERROR(CheckPointer(pool, "pool"));
  KVT_ASSIGN_OR_RETURN(AttachmentPtr attachment, pool->pool->Latest());
  KVT_RETURN_IF_ERROR(CheckAttachment(load.attachment, attachment->id()));
  return attachment;
}

void Fill(const LoadState& state, kvt_load_progress* progress) {
  const LoadProgress& known = state.progress;
  progress->ready = known.ready;
  progress->finished = known.finished ? 1 : 0;
  progress->miss = static_cast<kvt_miss>(known.miss);
  const bool complete = known.finished && known.ready == state.hits;
  // After a failure no earlier count is confirmed any more.
  progress->layers = complete ? KVT_ALL_LAYERS : known.finished ? 0 : state.layers;
}

Status Wait(kvt_pool* pool, kvt_load load, const LoadGoal& goal, int64_t timeout_ms,
            kvt_load_progress* progress) {
  KVT_RETURN_IF_ERROR(CheckStruct(progress, "progress"));
  Fill({}, progress);
  KVT_ASSIGN_OR_RETURN(const AttachmentPtr attachment, AttachmentOf(pool, load));
  KVT_ASSIGN_OR_RETURN(
      const LoadState state,
      attachment->Wait(LoadId{load.id}, goal, ToDeadline(timeout_ms, pool->pool->connection())));
  Fill(state, progress);
  if (goal.ReachedBy(state)) return {};
  return MakeError(ErrorCode::kTimeout, "load_timeout",
                   fmt::format("{} of {} blocks are loaded", state.progress.ready, state.hits));
}

Status WaitOnStream(kvt_pool* pool, kvt_load load, uint32_t up_to, void* stream) {
  KVT_ASSIGN_OR_RETURN(const AttachmentPtr attachment, AttachmentOf(pool, load));
  return attachment->WaitOnStream(LoadId{load.id}, up_to, stream,
                                  pool->pool->connection().RequestDeadline());
}

}  // namespace
}  // namespace kvtier::client

extern "C" {

namespace client = kvtier::client;

kvt_status kvt_wait(kvt_pool* pool, kvt_load load, uint32_t up_to, int64_t timeout_ms,
                    kvt_load_progress* progress) {
  return client::Guard(
      [&] { return client::Wait(pool, load, {.hits = up_to}, timeout_ms, progress); });
}

kvt_status kvt_wait_layers(kvt_pool* pool, kvt_load load, uint32_t layers, int64_t timeout_ms,
                           kvt_load_progress* progress) {
  return client::Guard([&] {
    return client::Wait(pool, load, {.hits = 0, .layers = layers}, timeout_ms, progress);
  });
}

kvt_status kvt_wait_on_stream(kvt_pool* pool, kvt_load load, uint32_t up_to, void* stream) {
  return client::Guard([&]() -> kvtier::Status {
    if (load.id == 0) return {};
    return client::WaitOnStream(pool, load, up_to, stream);
  });
}

}  // extern "C"
