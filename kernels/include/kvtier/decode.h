/* SPDX-License-Identifier: Apache-2.0 */
/* Decode attention: one query token for each sequence over its paged KV cache. The conventions of
 * kernels.h hold. */
#ifndef KVTIER_DECODE_H_
#define KVTIER_DECODE_H_

#include "kvtier/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For each sequence s and query head h, which reads KV head h / (q_heads / kv_heads):
 *   score[i] = softmax_scale * (query . key[i]), capped if asked for
 *   output   = sum(exp(score[i]) * value[i]) / sum(exp(score[i]))
 *   lse      = log(sum(exp(score[i])))
 * over the keys i < kv_lengths[s], or the last window_tokens of them.
 *
 *  query, output  [sequences, q_heads, head_dim] of query_dtype (KVT_BF16 or KVT_FP16)
 *  lse            [sequences, q_heads], contiguous; null: not wanted
 *
 * Built: head_dim 64, 128 and 256; cache of query_dtype or of KVT_FP8_E4M3; q_heads / kv_heads from
 * 1 to 16; sequences * kv_heads up to KVT_DECODE_MAX_PAIRS. Over an fp8 cache the sums are those of
 * fp16 operands: queries beyond its range (65504) saturate. */
typedef struct {
  const void* query;
  void* output;
  float* lse;
  kvt_dtype query_dtype;
  int32_t q_heads;
  int64_t query_sequence_stride;
  int64_t query_head_stride;
  int64_t output_sequence_stride;
  int64_t output_head_stride;
  kvt_paged_kv kv;
  kvt_sequences sequences;
  float softmax_scale;   /* finite */
  float soft_cap;        /* finite; 0: none; else score = cap * tanh(score / cap) */
  int32_t window_tokens; /* 0: all */
  const float* sinks;    /* [q_heads]: logits that take weight but have no value, and count in the
                            LSE; null: none */
  /* 0: every multiprocessor gets the same share of the step's tokens, so that where a sequence is
   * cut, and with it the rounding of its result, depends on the other sequences. Else a power of
   * two from KVT_DECODE_MIN_SPLIT on: sequences are cut at its multiples and nowhere else, and a
   * sequence's result is the same to the bit in any batch. */
  int32_t split_tokens;
  /* Non-zero promises that the writing of block table and lengths had ended before the launch ahead
   * of this one on its stream began, as it has from a step's second layer on: they are then read
   * while that launch still runs. Queries and cache may come from it all the same. */
  int32_t tables_settled;
} kvt_decode_params;

#define KVT_DECODE_MAX_PAIRS 65536
#define KVT_DECODE_MIN_SPLIT 256

/* Workspace for these parameters, whatever the lengths up to max_kv_length. Call with the device
 * current. 0 if the parameters are refused. */
KVT_KERNEL_API size_t kvt_decode_workspace_bytes(const kvt_decode_params* params);

KVT_KERNEL_API kvt_kernel_status kvt_decode(const kvt_decode_params* params, void* workspace,
                                            size_t workspace_bytes, void* stream);

/* Decode of sequences that share prefixes: the blocks of a prefix are read once for all sequences
 * that begin with it, each sequence's own tokens after it once more, and both results are merged.
 *
 *  own       as for kvt_decode, but its tables and lengths are of the own tokens alone, those after
 *            the prefix (a prefix ends at a block's end). A window counts both.
 *  prefixes  tables and lengths of the prefixes, in the same cache
 *  members   [prefixes.sequences + 1]: prefix p is shared by the sequences
 *            [members[p], members[p + 1]); a sequence without one gets a prefix of length 0.
 *            members[0] is 0, and members[prefixes.sequences] the number of sequences.
 *
 * A workspace that has served other counts, sizes or types must be zeroed again. */
typedef struct {
  kvt_decode_params own;
  kvt_sequences prefixes;
  const int32_t* members;
} kvt_decode_shared_params;

KVT_KERNEL_API size_t kvt_decode_shared_workspace_bytes(const kvt_decode_shared_params* params);

KVT_KERNEL_API kvt_kernel_status kvt_decode_shared(const kvt_decode_shared_params* params,
                                                   void* workspace, size_t workspace_bytes,
                                                   void* stream);

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_DECODE_H_ */
