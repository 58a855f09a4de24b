/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a step's keys and values into a paged cache, with the rotary embedding and the fp8
 * quantisation fused. The conventions of kernels.h hold. */
#ifndef KVTIER_KV_WRITE_H_
#define KVTIER_KV_WRITE_H_

#include "kvtier/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  KVT_ROPE_NONE = 0,
  KVT_ROPE_NEOX = 1, /* element i turns with element i + rotary_dim / 2 */
  KVT_ROPE_GPTJ = 2  /* element 2i turns with element 2i + 1 */
} kvt_rope_style;

/* positions [tokens]; cos_sin [positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines.
 * Elements at rotary_dim and beyond stay as they are. */
typedef struct {
  kvt_rope_style style;
  int32_t rotary_dim; /* a multiple of 16, at most head_dim */
  const int32_t* positions;
  const float* cos_sin;
} kvt_rope;

/* For each token t with slot_mapping[t] >= 0: key[t] and value[t] go to slot slot_mapping[t], that
 * is row slot % page_tokens of block slot / page_tokens, keys turned by the rope. Tokens with a
 * negative slot are not written; no other byte of the cache changes. No two tokens share a slot.
 *
 *  key, value  [tokens, kv_heads, head_dim], 16-bit, strides in elements
 *  query       [tokens, query_heads, head_dim] or null: turned into query_output as well (which may
 *              be query itself), whatever the slot
 *
 * Rounding: the rotation is computed in fp32 and rounded to the input's type, then quantised as
 * e4m3(x * (1 / scale)), saturating; so the bytes equal those of a rotation written to memory and
 * quantised afterwards. With dynamic_scales, each (token, head) gets scale = max(|x|) / 448 (1 for
 * a row of zeros), which is written to the cache's scales; they must be laid out per token and
 * head. */
typedef struct {
  const void* key;
  const void* value;
  const void* query;
  void* query_output;
  kvt_dtype dtype; /* of key, value and query: KVT_BF16 or KVT_FP16 */
  int32_t tokens;
  int32_t query_heads;
  int64_t key_token_stride;
  int64_t key_head_stride;
  int64_t value_token_stride;
  int64_t value_head_stride;
  int64_t query_token_stride;
  int64_t query_head_stride;
  int64_t query_output_token_stride;
  int64_t query_output_head_stride;
  const int64_t* slot_mapping; /* [tokens] */
  kvt_rope rope;
  kvt_paged_kv cache; /* of `dtype`, or KVT_FP8_E4M3 */
  int32_t dynamic_scales;
  int32_t tables_settled; /* as in kvt_decode_params, of slot_mapping, positions and cos_sin */
} kvt_kv_write_params;

KVT_KERNEL_API kvt_kernel_status kvt_kv_write(const kvt_kv_write_params* params, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_KV_WRITE_H_ */
