/* SPDX-License-Identifier: Apache-2.0 */
/* libkvtier_kernels for programs that must also run where it is not: one symbol to look up leads to
 * everything else, and a few calls spare them the CUDA runtime. */
#ifndef KVTIER_KERNEL_TABLE_H_
#define KVTIER_KERNEL_TABLE_H_

#include "kvtier/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever the table or a parameter struct in it changes. */
#define KVT_KERNELS_ABI 1

/* Conventions of the calls about memory and streams: kernels.h's; "device" is the calling thread's
 * current one, as chosen by select_device. A stream is opaque; memory comes zeroed and aligned to
 * 256 bytes. */
typedef struct {
  uint32_t abi;                 /* KVT_KERNELS_ABI */
  uint32_t table_bytes;         /* sizes as the library was built, to be compared */
  uint32_t decode_params_bytes; /* with the caller's */
  uint32_t prefill_params_bytes;
  uint32_t kv_write_params_bytes;
  const char* version; /* of the project, for people */

  const char* (*status_text)(kvt_kernel_status status);
  /* The objection of this thread's last refused call: kvt_kernel_last_error_detail. */
  const char* (*last_error_detail)(void);
  /* CUDA's last message on this thread, for people; never null. */
  const char* (*cuda_error_text)(void);

  size_t (*decode_workspace_bytes)(const kvt_decode_params* params);
  kvt_kernel_status (*decode)(const kvt_decode_params* params, void* workspace,
                              size_t workspace_bytes, void* stream);
  size_t (*prefill_workspace_bytes)(const kvt_prefill_params* params);
  kvt_kernel_status (*prefill)(const kvt_prefill_params* params, void* workspace,
                               size_t workspace_bytes, void* stream);
  kvt_kernel_status (*kv_write)(const kvt_kv_write_params* params, void* stream);

  kvt_kernel_status (*select_device)(int32_t ordinal);
  kvt_kernel_status (*create_stream)(void** stream);
  void (*destroy_stream)(void* stream);
  /* Waits for all work of the stream. KVT_KERNEL_LAUNCH_FAILED: some of it failed, and the process
   * can hardly use the device any more. */
  kvt_kernel_status (*synchronize)(void* stream);
  /* KVT_KERNEL_OUT_OF_MEMORY: the device has not so much left; nothing else has changed. */
  kvt_kernel_status (*allocate)(void** memory, size_t bytes);
  void (*release)(void* memory);
  /* Either way between host and device, or within either. */
  kvt_kernel_status (*copy)(void* to, const void* from, size_t bytes, void* stream);
} kvt_kernel_table;

#define KVT_KERNEL_TABLE_SYMBOL "kvt_kernels_table"

/* The table of that ABI, or null if the library has another. Never freed. */
KVT_KERNEL_API const kvt_kernel_table* kvt_kernels_table(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif /* KVTIER_KERNEL_TABLE_H_ */
