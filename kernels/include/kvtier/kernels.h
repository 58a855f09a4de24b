/* SPDX-License-Identifier: Apache-2.0 */
/* libkvtier_kernels: attention over a paged KV cache, and writes into it. C ABI; nothing but the
 * CUDA runtime's stream type (as void*) is needed to call it.
 *
 * Conventions of every function here:
 *  - Pointers in parameter structs are device pointers unless a comment says "host". All tensors
 *    lie where the strides say; strides are in elements of the tensor's type and may exceed 2^31.
 *    The innermost dimension (head_dim) is contiguous. Pointers are aligned to 16 bytes and every
 *    stride is a multiple of 16 bytes unless said otherwise.
 *  - Work is queued on `stream` and the call returns at once; nothing is allocated, nothing is
 *    synchronised, and the call may be captured into a CUDA graph. Lengths and tables are read on
 *    the device when the work runs, so that a captured graph serves other lengths later.
 *  - Workspace is the caller's: device memory, 256-byte aligned, of at least the bytes that the
 *    size query of the same parameters returns; zeroed once by the caller before its first use, and
 *    left fit for the next call. One workspace serves one stream at a time.
 *  - Returns KVT_KERNEL_OK or the reason nothing was queued.
 *  - Any host thread may call; the current CUDA device is the one that holds the pointers. */
#ifndef KVTIER_KERNELS_H_
#define KVTIER_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

/* The whole library is built hidden but for the declarations in these headers. */
#if defined(__GNUC__)
#define KVT_KERNEL_API __attribute__((visibility("default")))
#else
#define KVT_KERNEL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  KVT_KERNEL_OK = 0,
  KVT_KERNEL_INVALID_ARGUMENT = 1, /* a null pointer, a count or a stride that makes no sense */
  KVT_KERNEL_UNSUPPORTED = 2,      /* a type, head size or device for which no kernel is built */
  KVT_KERNEL_WORKSPACE_TOO_SMALL = 3,
  KVT_KERNEL_LAUNCH_FAILED = 4, /* CUDA refused; cudaGetLastError tells more */
  KVT_KERNEL_OUT_OF_MEMORY = 5  /* the device's memory is used up; the next call may succeed */
} kvt_kernel_status;

typedef enum { KVT_BF16 = 0, KVT_FP16 = 1, KVT_FP8_E4M3 = 2, KVT_FP32 = 3 } kvt_dtype;

/* The factors that turn an fp8 cache's values into the real ones. Null: 1.
 * Per tensor:         one float, strides 0.
 * Per head:           [kv_heads], head_stride 1, the others 0.
 * Per token and head: block_stride, token_stride and head_stride as laid out. */
typedef struct {
  const float* values;
  int64_t block_stride;
  int64_t token_stride;
  int64_t head_stride;
} kvt_scales;

/* One layer of a paged KV cache: K and V of shape [blocks, page_tokens, kv_heads, head_dim], in any
 * strided layout; in kvtier's pool [block][layer][K,V][token][head][dim] the strides are
 *   block = layers * 2 * page_tokens * kv_heads * head_dim, token = kv_heads * head_dim,
 *   head = head_dim, and `key` and `value` point at the layer's slices of block 0. */
typedef struct {
  void* key;
  void* value;
  kvt_dtype dtype;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t page_tokens; /* 16 to 256, a power of two */
  int64_t block_stride;
  int64_t token_stride;
  int64_t head_stride;
  kvt_scales key_scales; /* fp8 only */
  kvt_scales value_scales;
} kvt_paged_kv;

/* Which blocks each sequence uses.
 *  block_table [sequences, table_stride]: entry i of a row is the block of tokens
 *    [i * page_tokens, (i + 1) * page_tokens); entries past the length are not read.
 *  kv_lengths [sequences]: cached tokens, the step's own included. 0: an empty sequence, whose
 *    output is 0 and whose LSE is -infinity. */
typedef struct {
  const int32_t* block_table;
  const int32_t* kv_lengths;
  int64_t table_stride;
  int32_t sequences;
  int32_t max_kv_length; /* host: no length is larger; bounds the schedule */
} kvt_sequences;

/* For people: what a status means. Never null. */
KVT_KERNEL_API const char* kvt_kernel_status_text(kvt_kernel_status status);

/* The objection of this thread's last refused call, for people: the field, its value and the
 * possible ones, e.g. "kv.head_dim is 96; kernels are built for 64, 128 or 256". Set by every call
 * that returns KVT_KERNEL_INVALID_ARGUMENT, _UNSUPPORTED or _WORKSPACE_TOO_SMALL, and by size
 * queries that return 0; left as it was by all others, and empty at first. Overwritten by the
 * thread's next refused call. Never null. */
KVT_KERNEL_API const char* kvt_kernel_last_error_detail(void);

#ifdef __cplusplus
}
#endif

#include "kvtier/decode.h"
#include "kvtier/kv_write.h"
#include "kvtier/merge_lse.h"
#include "kvtier/mla.h"
#include "kvtier/prefill.h"

#endif /* KVTIER_KERNELS_H_ */
