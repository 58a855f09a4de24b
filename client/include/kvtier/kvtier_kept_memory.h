/* SPDX-License-Identifier: Apache-2.0 */
/* libkvtier: memory that outlives its process, for engines whose KV cache shall be there when they
 * are started again. Part of kvtier.h, whose rules on status, ownership, threads and units hold;
 * include that.
 *
 * The engine allocates through this: memory that other processes can import, of a GPU or of the
 * host. The daemon holds descriptors of it. When the engine's process has ended, however it did,
 * the memory stays as it is, and the next engine that asks for the same name finds it at once: no
 * byte is copied. It is given back when none has asked for some time (kept_memory.keep_for of the
 * daemon), when it is released, or when the daemon ends.
 *
 * Name. Chosen by the engine from everything that two processes must agree on to use the same
 * bytes: model, layout, block count, byte count, rank, and the engine's version; and the device, if
 * engines of one kind run side by side, for a name belongs to one living process at a time.
 *
 * Table. Beside the memory, shared memory of its own says which block of which group holds which
 * hash. Little endian, version 1: a header of 64 bytes, "KVTTABLE" u32 version, u32 blocks, u64
 * sequence (of the last publishing), root[32] (the root of the engine's hashes; zeros: not known
 * yet), zeros; then for each block 64 bytes: u64 state (0: nothing; else the number of its
 * publishing), u32 group, u32 reserved, hash[32], reserved[16]. A block counts only while its state
 * is not 0, and the data that the state vouches for changes only while it is 0: a process may die
 * between any two instructions. The daemon reads it where a region names the
 * memory (kept_name of kvt_region_options).
 *
 * Order. A block is published when its bytes are complete on the device, and retracted before
 * anything is launched that writes them.
 *
 * Loss of the daemon. Memory and table are the process's own and go on; only after
 * kvt_kept_memory_keep over a new connection are they kept again.
 */
#ifndef KVTIER_CLIENT_KVTIER_KEPT_MEMORY_H_
#define KVTIER_CLIENT_KVTIER_KEPT_MEMORY_H_

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvt_kept_memory kvt_kept_memory;

enum { KVT_KEPT_NAME_BYTES = 32, KVT_KEPT_ROOT_BYTES = 32, KVT_MAX_KEPT_GROUPS = 16 };

typedef struct kvt_kept_memory_options {
  size_t size;
  uint8_t name[KVT_KEPT_NAME_BYTES];
  uint64_t bytes;
  uint32_t blocks;     /* of the table, 1 to KVT_MAX_REGION_BLOCKS */
  int32_t cuda_device; /* as this process numbers the GPUs; -1 (default): host memory */
} kvt_kept_memory_options;
/* Sets `size` and cuda_device; the rest 0. */
KVT_API void kvt_kept_memory_options_init(kvt_kept_memory_options* options);

/* Takes the memory that the daemon keeps under the name. If it keeps none, or memory that does not
 * fit the options, allocates zeros and has the daemon keep them; where a GPU is full, memory that
 * the daemon keeps there for engines that have ended is released first. With a NULL connection, or
 * one that is lost, it only allocates; kvt_kept_memory_keep hands the memory over later. The
 * connection is not needed afterwards.
 *
 * Errors: KVT_WRONG_STATE "memory_in_use" (another process that lives owns the name, for one that
 * is ending a second is waited; or other memory of this process has it); KVT_TIMEOUT (the daemon
 * may hand the memory over yet: try again); KVT_INVALID_ARGUMENT "bad_options"; KVT_LIMIT_EXCEEDED
 * "too_many_kept_memories", "kept_bytes"; KVT_NOT_FOUND "no_such_gpu", "device_not_served" (the
 * daemon does not use that GPU); KVT_RESOURCE_EXHAUSTED; KVT_UNSUPPORTED (no driver); KVT_IO_ERROR.
 */
KVT_API kvt_status kvt_kept_memory_open(kvt_connection* connection,
                                        const kvt_kept_memory_options* options,
                                        kvt_kept_memory** memory);
/* Has the daemon keep the memory, which it may already: to be called after each connection. Errors:
 * as kvt_kept_memory_open; KVT_UNAVAILABLE, KVT_TIMEOUT. */
KVT_API kvt_status kvt_kept_memory_keep(kvt_kept_memory* memory, kvt_connection* connection);
/* Unmaps memory and table and closes their descriptors; the daemon goes on keeping both. REQUIRES:
 * nothing of this process uses them. */
KVT_API void kvt_kept_memory_close(kvt_kept_memory* memory);

/* Where the memory is, in host memory or on the GPU. */
KVT_API void* kvt_kept_memory_data(kvt_kept_memory* memory);
/* Its descriptor, for kvt_region_open (KVT_REGION_VMM on a GPU, else KVT_REGION_SHARED_MEMORY, of
 * kvt_kept_memory_bytes); the memory's. */
KVT_API int kvt_kept_memory_fd(const kvt_kept_memory* memory);
/* The size of the mapping: the requested one, rounded up. */
KVT_API uint64_t kvt_kept_memory_bytes(const kvt_kept_memory* memory);
/* 1 if the bytes are those that an earlier process left; then its table tells what they are. */
KVT_API int kvt_kept_memory_was_kept(const kvt_kept_memory* memory);

/* blocks[i] holds hashes[i] from now on, for the process that takes the memory next. Errors, before
 * anything is changed: KVT_INVALID_ARGUMENT "bad_group", "block_out_of_range". */
KVT_API kvt_status kvt_kept_memory_publish(kvt_kept_memory* memory, uint32_t group,
                                           const uint32_t* blocks, const kvt_hash* hashes,
                                           size_t count);
/* The blocks hold nothing from now on. Errors: KVT_INVALID_ARGUMENT "block_out_of_range". */
KVT_API kvt_status kvt_kept_memory_retract(kvt_kept_memory* memory, const uint32_t* blocks,
                                           size_t count);
/* The same for all blocks. */
KVT_API kvt_status kvt_kept_memory_clear(kvt_kept_memory* memory);
/* KVT_KEPT_ROOT_BYTES each. Setting another root than there was clears the table first. */
KVT_API kvt_status kvt_kept_memory_root(kvt_kept_memory* memory, uint8_t* root);
KVT_API kvt_status kvt_kept_memory_set_root(kvt_kept_memory* memory, const uint8_t* root);
/* The published blocks, in the order of their publishing: the first `capacity` of `*count` blocks.
 */
KVT_API kvt_status kvt_kept_memory_entries(kvt_kept_memory* memory, uint32_t* blocks,
                                           uint32_t* groups, kvt_hash* hashes, size_t capacity,
                                           size_t* count);

/* The table of some name as it was at the call, for another process than the memory's owner. */
typedef struct kvt_kept_table kvt_kept_table;
/* `*table` is NULL if the daemon keeps nothing under the name, or a table of another version.
 * Changes no owner. Errors: KVT_UNAVAILABLE, KVT_TIMEOUT. */
KVT_API kvt_status kvt_kept_table_read(kvt_connection* connection, const uint8_t* name,
                                       kvt_kept_table** table);
KVT_API kvt_status kvt_kept_table_root(const kvt_kept_table* table, uint8_t* root);
KVT_API kvt_status kvt_kept_table_entries(const kvt_kept_table* table, uint32_t* blocks,
                                          uint32_t* groups, kvt_hash* hashes, size_t capacity,
                                          size_t* count);
KVT_API void kvt_kept_table_close(kvt_kept_table* table);

/* Has the daemon give memory back: of one name, or with NULL all that waits for an engine on one of
 * the daemon's devices (KVT_ANY_DEVICE: anywhere). `released` and `bytes` tell how much it was.
 * Errors: KVT_WRONG_STATE "memory_in_use" (of a name: another process that lives owns it);
 * KVT_UNAVAILABLE, KVT_TIMEOUT. */
KVT_API kvt_status kvt_memory_release(kvt_connection* connection, const uint8_t* name,
                                      uint32_t device, uint32_t* released, uint64_t* bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVTIER_CLIENT_KVTIER_KEPT_MEMORY_H_ */
