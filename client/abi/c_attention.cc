// SPDX-License-Identifier: Apache-2.0
// The C ABI: attention computed by the daemon.

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "client/abi/c_common.h"
#include "client/core/workspace.h"

// Opaque to C, freed by kvt_workspace_close. It belongs to the connection over which it was opened,
// and computes nothing any more once that is lost.
struct kvt_workspace {
  // For its time-outs; outlives it.
  const kvtier::client::Connection* connection = nullptr;
  std::unique_ptr<kvtier::client::Workspace> workspace;
};

namespace kvtier::client {
namespace {

// Checks only the parts that the daemon cannot: pointers, and enumerators that the casts below
// would cut. The daemon checks the numbers against the model and the workspace.
Status CheckRequest(const kvt_attend_request* request) {
  KVT_RETURN_IF_ERROR(CheckStruct(request, "request"));
  KVT_RETURN_IF_ERROR(CheckArray(request->sequences, request->sequence_count, "sequences"));
  KVT_RETURN_IF_ERROR(CheckArray(request->blocks, request->block_count, "blocks"));
  KVT_RETURN_IF_ERROR(CheckArray(request->key_scales, request->key_scale_count, "key_scales"));
  KVT_RETURN_IF_ERROR(
      CheckArray(request->value_scales, request->value_scale_count, "value_scales"));
  if (request->query_dtype >= KVT_DTYPE_FLOAT32 && request->query_dtype <= KVT_DTYPE_BFLOAT16) {
    return {};
  }
  return MakeError(ErrorCode::kInvalidArgument, "bad_query_dtype",
                   fmt::format("{}", request->query_dtype));
}

}  // namespace

extern "C" {

// Needs a daemon: a workspace is memory of its device. `*workspace` is null after every error.
KVT_API kvt_status kvt_workspace_open(kvt_pool* pool, uint64_t bytes, kvt_workspace** workspace) {
  return GuardOn(pool, "pool", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(workspace, "workspace"));
    *workspace = nullptr;
    auto handle = std::make_unique<kvt_workspace>();
    handle->connection = &pool->pool->connection();
    KVT_ASSIGN_OR_RETURN(auto attachment, pool->pool->Attached());
    KVT_ASSIGN_OR_RETURN(handle->workspace, Workspace::Open(std::move(attachment), bytes,
                                                            handle->connection->RequestDeadline()));
    *workspace = handle.release();
    return {};
  });
}

// A daemon that is gone has freed its side, so that an error of Close means nothing.
KVT_API void kvt_workspace_close(kvt_workspace* workspace) {
  if (workspace == nullptr) return;
  (void)Guard([&]() -> Status {
    workspace->workspace->Close();
    return {};
  });
  delete workspace;
}

// Maps GPU memory for this process at the first call; `device_base` stays 0 for host memory.
// Errors: those of PoolMapping::OnDevice.
KVT_API kvt_status kvt_workspace_get_info(kvt_workspace* workspace, kvt_workspace_info* info) {
  return GuardOn(workspace, "workspace", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(info, "info"));
    PoolMapping& mapping = workspace->workspace->mapping();
    info->base = mapping.base();
    info->bytes = mapping.bytes();
    info->device_base = 0;
    info->ordinal = 0;
    info->device_kind = static_cast<kvt_device_kind>(mapping.device_kind());
    if (mapping.device_kind() == wire::DeviceKind::kHost) return {};
    KVT_ASSIGN_OR_RETURN(const std::shared_ptr<const CudaMapping> device, mapping.OnDevice());
    info->device_base = device->address();
    info->ordinal = device->ordinal();
    return {};
  });
}

KVT_API void kvt_attend_request_init(kvt_attend_request* request) {
  *request = {};
  request->size = sizeof(*request);
  request->softmax_scale = 1;
  request->query_dtype = KVT_DTYPE_BFLOAT16;
  request->lse_offset = KVT_NO_LSE;
}

// Waits for the result. All blocks must be of the workspace's own attachment: after a reconnection
// their numbers name other blocks. `*compute_ns` is set on success only.
KVT_API kvt_status kvt_attend(kvt_workspace* workspace, const kvt_attend_request* request,
                              int64_t timeout_ms, uint64_t* compute_ns) {
  return GuardOn(workspace, "workspace", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckRequest(request));
    const uint64_t attachment = workspace->workspace->attachment().id();
    wire::Attend attend{
        .layer = request->layer,
        .q_heads = request->q_heads,
        .query_dtype = static_cast<KvDtype>(request->query_dtype),
        .softmax_scale = request->softmax_scale,
        .soft_cap = request->soft_cap,
        .window_tokens = request->window_tokens,
        .query_offset = request->query_offset,
        .output_offset = request->output_offset,
        .lse_offset = request->lse_offset,
        .key_scales = {request->key_scales, request->key_scales + request->key_scale_count},
        .value_scales = {request->value_scales,
                         request->value_scales + request->value_scale_count}};
    for (size_t i = 0; i < request->sequence_count; ++i) {
      attend.sequences.push_back(
          {request->sequences[i].query_tokens, request->sequences[i].kv_tokens});
    }
    for (size_t i = 0; i < request->block_count; ++i) {
      KVT_RETURN_IF_ERROR(CheckAttachment(request->blocks[i].attachment, attachment));
      attend.blocks.push_back(ToHandle(request->blocks[i]));
    }
    KVT_ASSIGN_OR_RETURN(const uint64_t nanoseconds,
                         workspace->workspace->Attend(
                             std::move(attend), ToDeadline(timeout_ms, *workspace->connection)));
    if (compute_ns != nullptr) *compute_ns = nanoseconds;
    return {};
  });
}

// The handles of the sequence's first blocks. Before the cached prefix is there they are not final,
// so the call refuses: kWrongState "not_ready".
KVT_API kvt_status kvt_sequence_blocks(const kvt_sequence* sequence, kvt_block* blocks,
                                       size_t block_count) {
  return GuardOn(sequence, "sequence", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(blocks, block_count, "blocks"));
    const Sequence& known = *sequence->sequence;
    if (!known.ready()) {
      return MakeError(ErrorCode::kWrongState, "not_ready", "the cached prefix must be waited for");
    }
    if (block_count > known.blocks().size()) {
      return MakeError(ErrorCode::kInvalidArgument, "too_many_blocks",
                       fmt::format("{} of {}", block_count, known.blocks().size()));
    }
    for (size_t i = 0; i < block_count; ++i) {
      blocks[i] = ToBlock(known.blocks()[i], known.attachment().id());
    }
    return {};
  });
}

}  // extern "C"

}  // namespace kvtier::client
