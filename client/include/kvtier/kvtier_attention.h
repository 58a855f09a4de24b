/* SPDX-License-Identifier: Apache-2.0 */
/* libkvtier: attention computed by the daemon, for processes that launch no kernels of their own.
 * Part of kvtier.h, whose rules on status, ownership, threads and units hold; include that. */
#ifndef KVTIER_CLIENT_KVTIER_ATTENTION_H_
#define KVTIER_CLIENT_KVTIER_ATTENTION_H_

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory shared with the daemon, on a pool's device: queries go in, results come out. */
typedef struct kvt_workspace kvt_workspace;

/* Makes and maps a workspace of at least `bytes` bytes, zeroed. It belongs to the connection as it
 * stands: once that is lost, kvt_attend returns KVT_UNAVAILABLE, and another workspace must be
 * opened; its memory stays readable until it is closed. Errors: KVT_UNSUPPORTED "attend_off" (the
 * daemon does not compute), KVT_LIMIT_EXCEEDED (the daemon's bound on all workspaces; 16 at once
 * for a connection), KVT_INVALID_ARGUMENT, KVT_UNAVAILABLE. */
KVT_API kvt_status kvt_workspace_open(kvt_pool* pool, uint64_t bytes, kvt_workspace** workspace);
/* Unmaps and frees it, on both sides. Does not wait for an answer. REQUIRES: no call uses it; the
 * pool is not closed. */
KVT_API void kvt_workspace_close(kvt_workspace* workspace);

typedef struct kvt_workspace_info {
  size_t size;
  void* base; /* host memory; NULL on a GPU */
  uint64_t bytes;
  uint64_t device_base; /* CUDA address in this process; 0 in host memory */
  int32_t ordinal;      /* of the GPU, as this process numbers them */
  kvt_device_kind device_kind;
} kvt_workspace_info;

/* Maps a GPU's memory on the first call. Errors: those of kvt_pool_map_device. */
KVT_API kvt_status kvt_workspace_get_info(kvt_workspace* workspace, kvt_workspace_info* info);

/* The sequence's last `query_tokens` of `kv_tokens` cached tokens are queries. */
typedef struct kvt_attend_sequence {
  uint32_t query_tokens;
  uint32_t kv_tokens;
} kvt_attend_sequence;

#define KVT_NO_LSE UINT64_MAX

typedef struct kvt_attend_request {
  size_t size;
  uint32_t layer;
  uint32_t q_heads;            /* a multiple of the model's kv_heads */
  float softmax_scale;         /* above 0 */
  float soft_cap;              /* 0: none; else score = cap * tanh(score / cap) */
  uint32_t window_tokens;      /* 0: all; else a token sees only so many, itself included */
  kvt_model_dtype query_dtype; /* of queries and output: float16, bfloat16, or float32 */
  uint8_t reserved[3];
  /* Offsets in the workspace, multiples of 16, of ranges that do not overlap:
   * queries and output [tokens, q_heads, head_dim], one sequence after another; log-sum-exps
   * [tokens, q_heads] of float, or KVT_NO_LSE. */
  uint64_t query_offset;
  uint64_t output_offset;
  uint64_t lse_offset;
  const kvt_attend_sequence* sequences;
  size_t sequence_count;
  const kvt_block* blocks; /* of all sequences, one after another: as many as kv_tokens need */
  size_t block_count;
  /* The factors of an fp8 cache's numbers: one for each of the model's KV heads, or one for all of
   * them; none stands for 1. Finite and above 0. */
  const float* key_scales;
  size_t key_scale_count;
  const float* value_scales;
  size_t value_scale_count;
} kvt_attend_request;
/* Sets `size`, softmax_scale 1, bfloat16, KVT_NO_LSE; the rest 0. */
KVT_API void kvt_attend_request_init(kvt_attend_request* request);

/* Causal attention of one layer over blocks that this process holds, and waits for it. Keys and
 * values of all kv_tokens must have been written before (on a GPU: the stream has been waited for),
 * and the blocks must be held until it returns. The results are then in the workspace. `compute_ns`
 * (may be NULL): the time that they took. One workspace may serve several calls at once, if their
 * ranges differ. docs/PROTOCOL.md, "Attention", lists the dtypes and sizes that can be computed.
 * Errors: KVT_UNSUPPORTED, KVT_INVALID_ARGUMENT ("bad_scale_count", "bad_scale" and others, naming
 * the field), KVT_NOT_OWNER, KVT_STALE_HANDLE, KVT_WRONG_STATE
 * (a block's load has not reached it), KVT_LIMIT_EXCEEDED (too much for one call), KVT_UNAVAILABLE,
 * KVT_IO_ERROR (the device failed), KVT_TIMEOUT (the output may still be written). */
KVT_API kvt_status kvt_attend(kvt_workspace* workspace, const kvt_attend_request* request,
                              int64_t timeout_ms, uint64_t* compute_ns);

/* The handles of a sequence's first `block_count` logical blocks, as kvt_attend takes them. Errors:
 * KVT_INVALID_ARGUMENT (there are fewer), KVT_WRONG_STATE (wait is due). */
KVT_API kvt_status kvt_sequence_blocks(const kvt_sequence* sequence, kvt_block* blocks,
                                       size_t block_count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVTIER_CLIENT_KVTIER_ATTENTION_H_ */
