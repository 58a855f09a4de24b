// SPDX-License-Identifier: Apache-2.0
// The C ABI: waiting for what an acquire has loaded.

#include <memory>

#include "client/abi/c_common.h"

namespace kvtier::client {
namespace {

using AttachmentPtr = std::shared_ptr<const Attachment>;

// The attachment over which the load was begun, which must still be the pool's. It never
// reconnects: the loads of a lost connection cannot be waited for. Errors: kStaleHandle
// "attachment_lost"; those of Pool::Latest.
Result<AttachmentPtr> AttachmentOf(kvt_pool* pool, kvt_load load) {
  KVT_RETURN_IF_ERROR(CheckPointer(pool, "pool"));
  KVT_ASSIGN_OR_RETURN(AttachmentPtr attachment, pool->pool->Latest());
  KVT_RETURN_IF_ERROR(CheckAttachment(load.attachment, attachment->id()));
  return attachment;
}

// `layers` counts only while the load can still succeed, or when it has.
void Fill(const LoadState& state, kvt_load_progress* progress) {
  const LoadProgress& known = state.progress;
  progress->ready = known.ready;
  progress->finished = known.finished ? 1 : 0;
  progress->miss = static_cast<kvt_miss>(known.miss);
  const bool complete = known.finished && known.ready == state.hits;
  // After a failure no earlier count is confirmed any more.
  progress->layers = complete ? KVT_ALL_LAYERS : known.finished ? 0 : state.layers;
}

// `*progress` is set in any case, also when the time is up: callers use the blocks that have
// arrived. A load that has failed reaches its goal, and the progress says so. Errors: kTimeout
// "load_timeout".
Status Wait(kvt_pool* pool, kvt_load load, const LoadGoal& goal, int64_t timeout_ms,
            kvt_load_progress* progress) {
  KVT_RETURN_IF_ERROR(CheckStruct(progress, "progress"));
  Fill({}, progress);
  if (load.id == 0) {
    Fill({.progress = {.ready = UINT32_MAX, .finished = true}, .hits = UINT32_MAX}, progress);
    return {};
  }
  KVT_ASSIGN_OR_RETURN(const AttachmentPtr attachment, AttachmentOf(pool, load));
  KVT_ASSIGN_OR_RETURN(
      const LoadState state,
      attachment->Wait(LoadId{load.id}, goal, ToDeadline(timeout_ms, pool->pool->connection())));
  Fill(state, progress);
  return goal.Check(state);
}

// Returns once the stream has its wait; the host waits only if the load has no counter.
Status WaitOnStream(kvt_pool* pool, kvt_load load, uint32_t up_to, void* stream) {
  KVT_ASSIGN_OR_RETURN(const AttachmentPtr attachment, AttachmentOf(pool, load));
  return attachment->WaitOnStream(LoadId{load.id}, up_to, stream,
                                  pool->pool->connection().RequestDeadline());
}

}  // namespace

extern "C" {

KVT_API kvt_status kvt_wait(kvt_pool* pool, kvt_load load, uint32_t up_to, int64_t timeout_ms,
                            kvt_load_progress* progress) {
  return Guard([&] { return Wait(pool, load, {.hits = up_to}, timeout_ms, progress); });
}

KVT_API kvt_status kvt_wait_layers(kvt_pool* pool, kvt_load load, uint32_t layers,
                                   int64_t timeout_ms, kvt_load_progress* progress) {
  return Guard(
      [&] { return Wait(pool, load, {.hits = 0, .layers = layers}, timeout_ms, progress); });
}

// An acquire without anything to load has load 0: the stream need not wait.
KVT_API kvt_status kvt_wait_on_stream(kvt_pool* pool, kvt_load load, uint32_t up_to, void* stream) {
  return Guard([&]() -> Status {
    if (load.id == 0) return {};
    return WaitOnStream(pool, load, up_to, stream);
  });
}

}  // extern "C"

}  // namespace kvtier::client
