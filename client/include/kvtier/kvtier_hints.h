/* SPDX-License-Identifier: Apache-2.0
 * Prefetches, pins and hints: facts about a sequence that a client knows and its blocks do not
 * tell. They change which blocks are kept, never which bytes are served. A hint concerns blocks of
 * the client's own tenant and model; the daemon forgets it when it ends.
 *
 * Blocks that will not be used again, and that only this sequence needs, leave pool and host memory
 * before all others, and are not copied to host or disk any more, unless they are pinned. A block
 * that another cached sequence goes on from stays where its uses have put it. It does not matter
 * whether the hint comes before the blocks are released or after.
 *
 * All hints, also kvt_region_hint of kvtier_region.h, are one round trip, and none without a
 * daemon. `taken` may be NULL; it is set to how many blocks the hint was taken of. Errors:
 * KVT_INVALID_ARGUMENT "bad_enum"; "bad_returns_in" (negative, more than a day, or not 0 with
 * another hint than KVT_HINT_RETURNS); KVT_LIMIT_EXCEEDED "too_many_hashes"; KVT_UNAVAILABLE;
 * KVT_TIMEOUT.
 */
#ifndef KVTIER_KVTIER_HINTS_H_
#define KVTIER_KVTIER_HINTS_H_

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Brings the cached prefix into the pool without referencing it. `accepted` (may be NULL): how many
 * blocks are there or on their way. */
KVT_API kvt_status kvt_prefetch(kvt_pool* pool, const kvt_hash* hashes, size_t count,
                                uint32_t* accepted);
/* Keeps blocks from being forgotten until `ttl_ms` from now; 0 ends this connection's pins.
 * `pinned` (may be NULL): how many of them are cached. */
KVT_API kvt_status kvt_pin(kvt_pool* pool, const kvt_hash* hashes, size_t count, int64_t ttl_ms,
                           uint32_t* pinned);

typedef uint8_t kvt_hint;
enum {
  KVT_HINT_CLOSED = 1, /* the conversation has ended; a later use of a block disproves it */
  KVT_HINT_ONCE = 2,   /* the same, and uses do not disprove it: a job that runs once */
  KVT_HINT_RETURNS = 3 /* it goes on in `returns_in_ms`, as after a call of a tool: its blocks are
                          passed over until then when a pool needs space, and when host memory does
                          whose order of eviction no other tenant shares; nothing is loaded ahead */
};

/* `hashes`: of the sequence, from its first block on. */
KVT_API kvt_status kvt_hint_blocks(kvt_pool* pool, const kvt_hash* hashes, size_t count,
                                   kvt_hint hint, int64_t returns_in_ms, uint32_t* taken);
/* Concerns the blocks that the sequence found or has committed. Errors besides: KVT_STALE_HANDLE.
 */
KVT_API kvt_status kvt_sequence_hint(kvt_sequence* sequence, kvt_hint hint, int64_t returns_in_ms,
                                     uint32_t* taken);

#ifdef __cplusplus
}
#endif
#endif
