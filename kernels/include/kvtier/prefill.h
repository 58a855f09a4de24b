/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill attention (chunked prefill): several query tokens for each sequence over its paged KV
 * cache, which holds their own keys and values already. The conventions of kernels.h hold. */
#ifndef KVTIER_PREFILL_H_
#define KVTIER_PREFILL_H_

#include "kvtier/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sequence s has the query tokens [query_starts[s], query_starts[s + 1]); they are its last ones:
 * token i of n stands at position kv_lengths[s] - n + i and sees the keys up to its own position
 * (all keys if not causal), or the last window_tokens of those. For each and every query head h,
 * which reads KV head h / (q_heads / kv_heads):
 *   score[i] = softmax_scale * (query . key[i]), capped if asked for
 *   output   = sum(exp(score[i]) * value[i]) / sum(exp(score[i]))
 *   lse      = log(sum(exp(score[i])))
 * A token that sees no key gets output 0 and LSE -infinity. Lengths above sequences.max_kv_length
 * count as that.
 *
 *  query, output  [query_tokens, q_heads, head_dim] of query_dtype (KVT_BF16 or KVT_FP16)
 *  lse            [query_tokens, q_heads], contiguous; null: not wanted
 *
 * Built: head_dim 64, 128 and 256; cache of query_dtype or of KVT_FP8_E4M3; q_heads / kv_heads from
 * 1 to 64; a token's KV heads within 2^31 elements. Over an fp8 cache the sums are those of fp16
 * operands: queries beyond its range (65504) saturate. */
typedef struct {
  const void* query;
  void* output;
  float* lse;
  kvt_dtype query_dtype;
  int32_t q_heads;
  int64_t query_token_stride;
  int64_t query_head_stride;
  int64_t output_token_stride;
  int64_t output_head_stride;
  kvt_paged_kv kv;
  kvt_sequences sequences;
  const int32_t* query_starts; /* [sequences + 1]; rows of no sequence are left alone */
  int32_t query_tokens;        /* host: rows of query; query_starts[sequences] is not larger */
  float softmax_scale;         /* finite, above 0 */
  float soft_cap;              /* finite; 0: none; else score = cap * tanh(score / cap) */
  int32_t window_tokens;       /* 0: all */
  int32_t causal;              /* 0: every token sees every key, e.g. of a shared prefix */
  const float* sinks; /* [q_heads]: logits that take weight but have no value, and count in the
                         LSE; null: none */
  /* Into how many parts the keys of a tile of queries are split: 0 lets the bounds above choose so
   * that short queries fill the device; else this many. Devices other than Hopper never split. */
  int32_t splits;
  int32_t tables_settled; /* as in kvt_decode_params, of query_starts too */
  /* [query_tokens]: behind the keys here, token i sees so many keys more that are elsewhere, its
   * own among them, and its window begins that much later; null: none. Only if not causal. */
  const int32_t* tokens_behind;
} kvt_prefill_params;

#define KVT_PREFILL_MAX_SPLITS 64

/* Workspace for these parameters, whatever the lengths within their bounds. Call with the device
 * current. 0 if the parameters are refused. */
KVT_KERNEL_API size_t kvt_prefill_workspace_bytes(const kvt_prefill_params* params);

KVT_KERNEL_API kvt_kernel_status kvt_prefill(const kvt_prefill_params* params, void* workspace,
                                             size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_PREFILL_H_ */
