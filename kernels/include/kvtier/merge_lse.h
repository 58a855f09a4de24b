/* SPDX-License-Identifier: Apache-2.0 */
/* The merge of partial attention results, on every device since Ampere (compute capability 8.0): on
 * older ones the call returns KVT_KERNEL_UNSUPPORTED. The conventions of kernels.h hold. */
#ifndef KVTIER_MERGE_LSE_H_
#define KVTIER_MERGE_LSE_H_

#include "kvtier/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Merges partial attention results over disjoint sets of keys into the result over all of them.
 *  partials    [parts, tokens, heads, head_dim], rows contiguous, part_stride in elements
 *  partial_lse [parts, tokens, heads], natural logarithm, lse_part_stride in elements
 *  output      [tokens, heads, head_dim], strides in elements; lse [tokens, heads] or null
 * A part whose LSE is -infinity is ignored, whatever its row holds; with no other, output is 0 and
 * the LSE -infinity. Parts of +infinity alone are averaged; an LSE that is NaN makes both NaN. */
typedef struct {
  const void* partials;
  const float* partial_lse;
  void* output;
  float* lse;
  kvt_dtype partial_dtype; /* KVT_FP32, KVT_BF16 or KVT_FP16 */
  kvt_dtype output_dtype;  /* the same choice */
  int32_t parts;
  int32_t tokens;
  int32_t heads;
  int32_t head_dim; /* a multiple of 8 */
  int64_t part_stride;
  int64_t lse_part_stride;
  int64_t output_token_stride;
  int64_t output_head_stride;
} kvt_merge_lse_params;

KVT_KERNEL_API kvt_kernel_status kvt_merge_lse(const kvt_merge_lse_params* params, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_MERGE_LSE_H_ */
