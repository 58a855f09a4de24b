/* SPDX-License-Identifier: Apache-2.0 */
/* Whole blocks in device memory: copies between layouts, fills, checksums, and the merge of partial
 * attention results. They run on every device since Ampere (compute capability 8.0): on older ones
 * the calls return KVT_KERNEL_UNSUPPORTED. The conventions of kernels.h hold; strides here are in
 * bytes unless said otherwise, because blocks are moved whatever their type. */
#ifndef KVTIER_BLOCK_OPS_H_
#define KVTIER_BLOCK_OPS_H_

#include "kvtier/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the row of head_bytes at (block, layer, K or V, token, head) lies: the sum of its indices
 * times the strides, from `base`. Where every layer is a tensor of its own, `slice_bases` (device
 * memory) replaces base, layer_stride and kv_stride: [layers * 2], entry 2l the address of block 0
 * of layer l's keys, entry 2l + 1 of its values.
 * All addresses and strides are multiples of 16. */
typedef struct {
  void* base;
  void* const* slice_bases; /* or null */
  int64_t block_stride;
  int64_t layer_stride;
  int64_t kv_stride;
  int64_t token_stride;
  int64_t head_stride;
} kvt_block_layout;

/* Copies block source_blocks[i] of one layout to block destination_blocks[i] of another: a copy on
 * write within one pool, a gather from the pool into an engine's tensors, a scatter back.
 * A null list stands for 0, 1, 2, ..; a pair with a negative id on either side is skipped. No
 * destination may overlap another destination or a source. */
typedef struct {
  kvt_block_layout source;
  kvt_block_layout destination;
  const int32_t* source_blocks;
  const int32_t* destination_blocks;
  int32_t blocks;
  int32_t layers;
  int32_t tokens; /* per block */
  int32_t heads;
  int32_t head_bytes; /* a multiple of 16 */
} kvt_copy_blocks_params;

KVT_KERNEL_API kvt_kernel_status kvt_copy_blocks(const kvt_copy_blocks_params* params,
                                                 void* stream);

/* Some blocks of one contiguous pool. `block_ids` null: 0, 1, 2, ..; negative ids are skipped. */
typedef struct {
  void* base;
  int64_t block_stride;
  int64_t block_bytes;
  const int32_t* block_ids;
  int32_t blocks;
} kvt_block_list;

/* Fills the blocks with a repeated 32-bit pattern. block_bytes: a multiple of 16. */
KVT_KERNEL_API kvt_kernel_status kvt_fill_blocks(const kvt_block_list* list, uint32_t pattern,
                                                 void* stream);

/* Canonical (big-endian) xxh3-128, seed 0, of each block's bytes into checksums[16 * i]: the same
 * 16 bytes that the tiers below keep, so that a block can be checked without leaving the device.
 * block_bytes: a multiple of 64, at least 256. The checksum of a skipped block is left as it was.
 */
KVT_KERNEL_API kvt_kernel_status kvt_checksum_blocks(const kvt_block_list* list, uint8_t* checksums,
                                                     void* stream);

/* Merges partial attention results over disjoint sets of keys into the result over all of them.
 *  partials    [parts, tokens, heads, head_dim], rows contiguous, part_stride in elements
 *  partial_lse [parts, tokens, heads], natural logarithm, lse_part_stride in elements
 *  output      [tokens, heads, head_dim], strides in elements; lse [tokens, heads] or null
 * A part whose LSE is -infinity is ignored whatever its row holds; without any part left, output is
 * 0 and the LSE -infinity. If an LSE is +infinity, such parts alone are averaged. */
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
#endif /* KVTIER_BLOCK_OPS_H_ */
