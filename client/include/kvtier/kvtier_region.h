/* SPDX-License-Identifier: Apache-2.0 */
/* libkvtier: regions, for engines that manage their KV memory themselves (vLLM's host rows and its
 * KV tensors). Part of kvtier.h, whose rules on status, ownership, threads and units hold; include
 * that.
 *
 * A region is memory of the caller's, cut into blocks that the caller numbers. The daemon maps it
 * and copies: a store takes blocks of the region into the cache, a load brings cached blocks into
 * the region. A lookup never finds anything in a region: its contents are the caller's affair.
 *
 * Transfers. Stores and loads only send, and return the number of a transfer. Until its end is
 * reported, by kvt_region_poll or kvt_region_wait, the blocks that it names must not be written (of
 * a store) or neither read nor written (of a load), and no other transfer may name them. Transfers
 * end in any order. Nothing but open, lookup, wait and close waits for the daemon.
 *
 * Loss. When the connection is lost, every transfer under way ends with KVT_UNAVAILABLE and the
 * region is of no further use, for good: its memory stays the caller's, who opens another region on
 * it once there is a daemon again. A daemon that ends a connection does so when nothing touches the
 * memory any more, and one that was killed touches nothing. Only where this library itself gave the
 * connection up, because the daemon broke the protocol or took in no requests, may a block that was
 * being loaded still be written, by the copy in whose midst the daemon stood still: see
 * kvt_region_daemon_ended. The daemon begins no copy afterwards, and caches nothing of a store.
 */
#ifndef KVTIER_CLIENT_KVTIER_REGION_H_
#define KVTIER_CLIENT_KVTIER_REGION_H_

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvt_region kvt_region;

/* How the daemon gets at the memory. */
typedef uint8_t kvt_region_memory;
enum {
  KVT_REGION_SHARED_MEMORY = 0, /* host memory that can be mapped: memfd_create, shm_open */
  KVT_REGION_VMM = 1,           /* of a GPU, a descriptor from cuMemExportToShareableHandle */
  KVT_REGION_CUDA_IPC = 2       /* of a GPU, a cudaIpcMemHandle_t in ipc_handle; no descriptor */
};

/* Where one part of every block lies: of block b from offset + b * block_stride on. */
typedef struct kvt_region_piece {
  uint64_t offset;
  uint64_t block_stride; /* not less than `bytes`, unless the region has one block */
  uint64_t bytes;
} kvt_region_piece;

enum { KVT_MAX_REGION_PIECES = 4096, KVT_MAX_REGION_BLOCKS = 1048576 };

typedef struct kvt_region_options {
  size_t size;
  uint64_t bytes; /* of the whole memory */
  /* Where a block's parts lie, in the order in which they make up its payload: together they are
   * the group's block. NULL with piece_count 0: blocks are whole and follow each other from the
   * memory's beginning. */
  const kvt_region_piece* pieces;
  size_t piece_count;
  int32_t fd; /* the memory's, unless it is KVT_REGION_CUDA_IPC; stays the caller's */
  uint32_t blocks;
  uint32_t group; /* of the model's groups; default 0 */
  /* Where a GPU's memory is, as `device` of kvt_attach; not looked at for shared memory. Default
   * KVT_ANY_DEVICE. */
  uint32_t device;
  uint8_t ipc_handle[64]; /* for KVT_REGION_CUDA_IPC */
  kvt_region_memory memory;
  uint8_t reserved[7];
  /* The name of the kept memory of a GPU (kvt_kept_memory_open) that the region lies in, so that
   * blocks which its table vouches for are copied from there into other regions and pools. With
   * zeros (default), or memory that is not kept, nothing is read from the region unasked. */
  uint8_t kept_name[32];
} kvt_region_options;
/* Sets `size`, fd -1, KVT_ANY_DEVICE; the rest 0. */
KVT_API void kvt_region_options_init(kvt_region_options* options);

/* Opens a region of a registered model over the connection as it stands. One round trip. Errors:
 * KVT_INVALID_ARGUMENT "bad_region_layout" (a block leaves the memory or overlaps another one),
 * "region_block_bytes" (the pieces are not the group's block), "no_descriptor", "bad_region_memory"
 * (the daemon cannot map it, or it is smaller than said); KVT_UNSUPPORTED "region_memory_kind";
 * KVT_NOT_FOUND (model, group, device); KVT_LIMIT_EXCEEDED "too_many_regions", "too_many_blocks",
 * "too_many_pieces"; KVT_UNAVAILABLE. */
KVT_API kvt_status kvt_region_open(kvt_connection* connection, uint32_t model,
                                   const kvt_region_options* options, kvt_region** region);
/* Waits until nothing touches the memory any more, or the connection is lost: then
 * kvt_region_daemon_ended tells. Without a transfer under way, CUDA IPC and a kept name it waits at
 * most for `request_timeout_ms`. Transfers that were not reported yet are forgotten. REQUIRES: no
 * call uses it; the connection is not closed. */
KVT_API void kvt_region_close(kvt_region* region);
/* Bytes of one block, all its pieces together. */
KVT_API uint64_t kvt_region_block_bytes(const kvt_region* region);
/* Whether the connection that it was opened over still stands: 0 means that the region is of no
 * further use. Never waits. */
KVT_API int kvt_region_is_connected(kvt_region* region);
/* Whether no byte of the region's memory changes any more, also of loads that were cut off: its
 * daemon's process has ended, or the connection is lost and the daemon took note two seconds ago. 0
 * before, as while a daemon that was given up stands still. Never waits. */
KVT_API int kvt_region_daemon_ended(kvt_region* region);
/* Gives up a daemon that hangs, from any thread: its connection is lost for all who use it,
 * transfers end as UNAVAILABLE, and if it goes on it begins no more of them. */
KVT_API kvt_status kvt_region_hang_up(kvt_region* region);

/* A block of the region that is to be cached. */
typedef struct kvt_store_block {
  kvt_hash hash;
  kvt_hash parent; /* of the block before this one, if has_parent */
  uint8_t has_parent;
  kvt_retention retention;
  uint16_t tokens; /* 1 to the group's block_tokens */
  uint32_t depth;  /* position in the sequence, 0 for the first block */
  uint32_t block;  /* of the region */
} kvt_store_block;

/* A cached block that is to be written to a block of the region. */
typedef struct kvt_load_block {
  kvt_hash hash;
  uint32_t block; /* of the region */
} kvt_load_block;

/* Begins a transfer, of up to KVT_MAX_REGION_BLOCKS blocks; many go out as several messages, but
 * stay one transfer. A hash that a pool or host memory has already is not copied again; one that is
 * on disk only comes to host memory. A store is also a use of the blocks before it in its sequence.
 * Only sends: a refusal of the daemon is told at the transfer's end. `*transfer` differs from that
 * of every other transfer of the region and is never 0. Errors (nothing was begun):
 * KVT_INVALID_ARGUMENT "empty_request", "block_out_of_range", "bad_token_count", "bad_retention";
 * KVT_LIMIT_EXCEEDED; KVT_UNAVAILABLE. */
KVT_API kvt_status kvt_region_store(kvt_region* region, const kvt_store_block* blocks, size_t count,
                                    uint64_t* transfer);
/* The same as kvt_region_store, as a canary: blocks that host memory has already are compared with
 * those of the region, which are numbers of this type, and count as skipped. An engine that
 * computes a part of its hits anew and stores it so lets the daemon find KV that is not what its
 * model's record says: a block that differs by more than rounding explains is dropped, and all of a
 * tenant and model over which engines differ again and again are misses (KVT_MISS_DISTRUSTED).
 * Blocks of states are skipped all the same. Further errors: KVT_INVALID_ARGUMENT "bad_dtype". */
KVT_API kvt_status kvt_region_store_compared(kvt_region* region, const kvt_store_block* blocks,
                                             size_t count, kvt_model_dtype dtype,
                                             uint64_t* transfer);
/* The same as kvt_region_store for blocks that are loaded: exactly those named, each for itself.
 * One that cannot be served does not keep the others from arriving. */
KVT_API kvt_status kvt_region_load(kvt_region* region, const kvt_load_block* blocks, size_t count,
                                   kvt_load_order order, uint64_t* transfer);

/* How a transfer has ended. Copied, skipped and failed blocks are together all that it named. */
typedef struct kvt_transfer_end {
  uint64_t transfer;
  uint32_t copied;
  uint32_t skipped; /* of a store: the daemon had the hash already */
  uint32_t failed;  /* kvt_region_failures tells which and why */
  /* KVT_OK; KVT_UNAVAILABLE: the connection was lost before the transfer ended; else why the daemon
   * refused it (or one of its messages) as a whole. */
  kvt_status code;
  char reason[48]; /* with another code than KVT_OK: short and stable, for example "block_busy" */
} kvt_transfer_end;

/* Takes up to `capacity` of the transfers that have ended, in the order in which they did; each is
 * reported once, by this call or by kvt_region_wait. Never waits, and does not fail when the daemon
 * is lost. */
KVT_API kvt_status kvt_region_poll(kvt_region* region, kvt_transfer_end* ends, size_t capacity,
                                   size_t* count);
/* Waits until one transfer has ended, and reports it. Errors: KVT_TIMEOUT (it is still under way),
 * KVT_NOT_FOUND "unknown_transfer" (never begun, or reported before). */
KVT_API kvt_status kvt_region_wait(kvt_region* region, uint64_t transfer, int64_t timeout_ms,
                                   kvt_transfer_end* end);

/* How many layers of a load begun with KVT_LOAD_LAYERS have come: layers 0 to *layers - 1 of all
 * its blocks are in the region's memory, so that a kernel which is launched after this call sees
 * them. Never goes back; is all of the group's layers once the load has ended well. Made to be
 * called in a loop: reads shared memory alone, unless all counters of the connection were in use
 * when the load began or some block has failed; then it reads the socket, too.
 *
 * Blocks that are in host memory come layer by layer, those on disk whole: no layer is counted
 * before these. The blocks belong to the transfer until its end is reported, as always.
 *
 * A load that ends without all layers makes this return why, so that a loop ends: KVT_CANCELLED
 * "load_incomplete" (kvt_region_wait tells which blocks failed), KVT_UNAVAILABLE, or the error with
 * which the daemon refused it. `*layers` is then the number that had come before. Others:
 * KVT_NOT_FOUND "unknown_transfer": not begun in this order, or ended 4,096 such loads ago. */
KVT_API kvt_status kvt_region_layers_loaded(kvt_region* region, uint64_t transfer,
                                            uint32_t* layers);
/* Waits until so many layers have come: without system calls at first, then with short sleeps.
 * Errors: KVT_TIMEOUT; KVT_INVALID_ARGUMENT "too_many_layers"; those of kvt_region_layers_loaded,
 * unless so many had come before. */
KVT_API kvt_status kvt_region_wait_layers(kvt_region* region, uint64_t transfer, uint32_t layers,
                                          int64_t timeout_ms);

#define KVT_FAILURES_KEPT 1024

/* Which blocks of a reported transfer failed, by their positions in the call (ascending), and why:
 * a reason as an acquire's; KVT_MISS_CANCELLED where the daemon refused the transfer;
 * KVT_MISS_UNAVAILABLE where the connection was lost. The bytes of a block whose load failed are
 * undefined. Writes the first `capacity` of them to both arrays, and to `*count` how many there
 * are; once all were written they are forgotten, and so are those of the oldest when
 * KVT_FAILURES_KEPT reported transfers have some. */
KVT_API kvt_status kvt_region_failures(kvt_region* region, uint64_t transfer, uint32_t* positions,
                                       kvt_miss* reasons, size_t capacity, size_t* count);

/* Fills presence[0..count) with the tiers that hold each block now, as kvt_lookup. One round trip.
 * KVT_PRESENT_POOL is never about the region itself. Blocks that are KVT_PRESENT_COLD can be
 * loaded. */
KVT_API kvt_status kvt_region_lookup(kvt_region* region, const kvt_hash* hashes, size_t count,
                                     uint8_t* presence);

/* Has the blocks of a sequence that only the disk has brought to host memory, for a load that comes
 * later, and waits for that: `timeout_ms` as kvt_region_wait's. `hashes` are the sequence's from
 * its first block on, or go on where an earlier call ended. `*in_memory` (may be NULL): how many of
 * them are in memory then, up to the first that is not cached or could not come. Prefetches come
 * behind all loads and stores; of all that they brought, the blocks not loaded yet take half of
 * host memory at most, and if no block comes for 5 s, for that reason or another, the call ends
 * with the blocks that came.
 * The blocks are not used by this, and may leave again. KVT_TIMEOUT: they still come, unless the
 * reason is "not_sent": the daemon takes in no requests, and will not hear of this one. */
KVT_API kvt_status kvt_region_prefetch(kvt_region* region, const kvt_hash* hashes, size_t count,
                                       int64_t timeout_ms, uint32_t* in_memory);

/* As kvt_hint_blocks; `hint` is one of KVT_HINT_*. */
KVT_API kvt_status kvt_region_hint(kvt_region* region, const kvt_hash* hashes, size_t count,
                                   uint8_t hint, int64_t returns_in_ms, uint32_t* taken);
/* As kvt_tokens_wanted and kvt_give_tokens. */
KVT_API kvt_status kvt_region_tokens_wanted(kvt_region* region, int* wanted);
KVT_API kvt_status kvt_region_give_tokens(kvt_region* region, const kvt_hash* hashes,
                                          const uint16_t* counts, size_t count, const uint32_t* ids,
                                          size_t id_count);
/* Keeps blocks from being forgotten until `ttl_ms` from now, as kvt_pin. */
KVT_API kvt_status kvt_region_pin(kvt_region* region, const kvt_hash* hashes, size_t count,
                                  int64_t ttl_ms, uint32_t* pinned);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVTIER_CLIENT_KVTIER_REGION_H_ */
