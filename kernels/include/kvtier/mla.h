/* SPDX-License-Identifier: Apache-2.0 */
/* Decode attention over a latent cache (multi-head latent attention, MLA): one query token for each
 * sequence; all heads share one row of 576 numbers for each cached token. The conventions of
 * kernels.h hold. */
#ifndef KVTIER_MLA_H_
#define KVTIER_MLA_H_

#include "kvtier/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_MLA_LATENT_DIM 512
#define KVT_MLA_ROPE_DIM 64
#define KVT_MLA_QUERY_DIM (KVT_MLA_LATENT_DIM + KVT_MLA_ROPE_DIM)
#define KVT_MLA_MAX_HEADS 128
#define KVT_MLA_MAX_PAIRS 16384

/* For each sequence s and query head h, the up-projections being absorbed in query and output:
 *   score[i] = softmax_scale * (query . latent[i])
 *   output   = sum(exp(score[i]) * latent[i][0 .. 511]) / sum(exp(score[i]))
 *   lse      = log(sum(exp(score[i])))
 * over the keys i < kv_lengths[s].
 *
 *  query   [sequences, q_heads, 576]: the latent part, then the part that the rope has turned
 *  latent  [blocks, page_tokens, 576] in the same order, in any strided layout; an fp8 one is
 *          multiplied with its scale: one for all, or one for each token; no head_stride
 *  output  [sequences, q_heads, 512]
 *  lse     [sequences, q_heads], contiguous; null: not wanted
 *
 * Built: KVT_BF16 and KVT_FP16, over a latent cache of the same type or of KVT_FP8_E4M3; q_heads
 * from 1 to KVT_MLA_MAX_HEADS; sequences times the tiles of 64 heads up to KVT_MLA_MAX_PAIRS. */
typedef struct {
  const void* query;
  void* output;
  float* lse;
  kvt_dtype dtype; /* of query and output */
  int32_t q_heads;
  int64_t query_sequence_stride;
  int64_t query_head_stride;
  int64_t output_sequence_stride;
  int64_t output_head_stride;
  const void* latent;
  int64_t block_stride;
  int64_t token_stride;
  int32_t page_tokens; /* 16 to 256, a power of two */
  kvt_dtype latent_dtype;
  kvt_scales latent_scales; /* fp8 only */
  kvt_sequences sequences;
  float softmax_scale;    /* above 0 */
  int32_t split_tokens;   /* as in kvt_decode_params */
  int32_t tables_settled; /* likewise */
} kvt_mla_decode_params;

/* Workspace for these parameters, whatever the lengths up to max_kv_length. Call with the device
 * current. 0 if the parameters are refused. */
KVT_KERNEL_API size_t kvt_mla_decode_workspace_bytes(const kvt_mla_decode_params* params);

KVT_KERNEL_API kvt_kernel_status kvt_mla_decode(const kvt_mla_decode_params* params,
                                                void* workspace, size_t workspace_bytes,
                                                void* stream);

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_MLA_H_ */
