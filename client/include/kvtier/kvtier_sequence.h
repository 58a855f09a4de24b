/* SPDX-License-Identifier: Apache-2.0 */
/* kvt_sequence: the blocks of one growing sequence of tokens. Included by kvtier.h; its rules hold.
 *
 * The life of a sequence in an engine:
 *  - kvt_sequence_open: hashes the prompt, references its longest cached prefix, reserves blocks
 *    for the rest. One round trip if all is cached, two if something must be filled.
 *  - kvt_sequence_wait: until the blocks found below the pool have been loaded.
 *  - The engine computes the tokens from cached_tokens on into their slots.
 *  - kvt_sequence_mark_computed: the KV of the first n tokens is in place; full blocks are
 *    committed.
 *  - kvt_sequence_append: the next token; compute it into its slot, mark it computed; and so on.
 *  - kvt_sequence_finish: commits the last, partial block too, if it is worth keeping.
 *  - kvt_sequence_close: gives everything back.
 *
 * The block table and the slots of tokens from `cached_tokens` on are always private blocks of this
 * sequence, so an engine may write there; a cached block that would be written is copied first
 * (copy-on-write).
 *
 * Resuming. Pools may outlive the daemon. If blocks are held when a call of the pool or of one of
 * its sequences finds the connection gone, and the daemon kept its pools, the call waits up to
 * `resume_wait_ms` for the next daemon, takes back the held blocks, and is made again; other
 * threads' calls of the pool wait as well. kvt_sequence_open waits likewise though nothing is held:
 * for an absent daemon all openings together wait so long once. The attachment is the same then:
 * handles stay good, and the bytes are the same. A sequence has the same block table, and nothing
 * to compute again; a prefix that was being loaded becomes shorter. Callers that use handles
 * themselves must know:
 *  - Loads are lost: kvt_wait returns KVT_UNAVAILABLE for them.
 *  - A block that cannot be had again is reported by kvt_take_errors, KVT_STALE_HANDLE
 *    "lost_at_restart", and kvt_check_blocks says KVT_STALE_HANDLE of it from then on. This also
 *    happens to blocks whose load kvt_wait had reported as complete: the daemon died before it had
 *    noted that. From the call that resumes on, other blocks may come where these were. So bytes
 *    that were read count only if kvt_check_blocks, called after reading, returns KVT_OK.
 *  - A commit that was only sent, and not flushed, may not have been heard: the block is private.
 * If there is no daemon in time, or the pool is new memory, everything that was held is lost.
 * Regions and workspaces end with the connection.
 *
 * When the connection is lost for good, or one of the blocks, so is the sequence: every call but
 * close then returns KVT_STALE_HANDLE "connection_lost". Its memory stays readable, but the bytes
 * of its blocks may be replaced: an engine that has computed with them should ask
 * kvt_sequence_check before it trusts the result.
 *
 * One thread at a time for one sequence; different sequences of one pool are independent. */
#ifndef KVTIER_CLIENT_KVTIER_SEQUENCE_H_
#define KVTIER_CLIENT_KVTIER_SEQUENCE_H_

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* KVT_OK if the caller has held all these blocks without a break since it acquired them: bytes that
 * it has read from them before this call are then theirs, and nothing else says so. Ask after
 * reading, and before the blocks are released. Does no round trip while the connection stands. If
 * the daemon was lost, takes back the held blocks from the next one first, as above. Errors:
 * KVT_STALE_HANDLE "lost_at_restart", "connection_lost" or "attachment_lost" (one of the blocks is
 * not held, or none is: throw away the bytes that were read from them). */
KVT_API kvt_status kvt_check_blocks(kvt_pool* pool, const kvt_block* blocks, size_t count);

/* Copies one block within the pool: `bytes` from `source_offset` to `target_offset`, both counted
 * from the pool's first byte. Returns after the copy is complete, 0 if it succeeded. */
typedef int32_t (*kvt_copy_block)(void* user, uint64_t target_offset, uint64_t source_offset,
                                  uint64_t bytes);

/* Which hits are worth loading; see kvtier_hit_plan.h. */
typedef uint8_t kvt_hit_plan;
enum {
  KVT_PLAN_ALL = 0, /* every hit */
  KVT_PLAN_CUT = 1  /* hits as far as loading them and computing the rest takes the least time */
};

typedef struct kvt_sequence_options {
  size_t size;
  const kvt_prompt_identity* identity; /* NULL: tokens alone; read at open only */
  uint32_t leave_tokens;   /* at least so many tokens are left to compute; default 1, because an
                              engine needs the logits of the last one */
  uint32_t reserve_tokens; /* blocks for so many, to append without a round trip; default 0 */
  kvt_retention retention; /* of the blocks this sequence commits; default KVT_RETENTION_EXTENDED */
  kvt_hit_plan plan;       /* default KVT_PLAN_ALL; see kvtier_hit_plan.h */
  uint8_t reserved[2];
  uint32_t deadline_ms; /* hits that would be loaded later are left out; default 0: none */
  kvt_copy_block copy;  /* for copy-on-write; NULL: memcpy in host memory, a copy on the GPU (on a
                           stream of the library's, waited for) in a CUDA pool, which is mapped as by
                           kvt_pool_map_device when the first copy is due */
  void* copy_user;
} kvt_sequence_options;
KVT_API void kvt_sequence_options_init(kvt_sequence_options* options);

/* Opens a sequence with its first tokens (possibly none), hashed by the model's recipe. `pool` must
 * outlive it. `options` may be NULL. Errors as of kvt_acquire; KVT_INVALID_ARGUMENT (the model's
 * recipe is not one of KVT_HASH_*, or does not hash what `identity` has); in particular
 * KVT_UNAVAILABLE (compute without the cache) and KVT_RESOURCE_EXHAUSTED (nothing is held). */
KVT_API kvt_status kvt_sequence_open(kvt_pool* pool, const kvt_sequence_options* options,
                                     const uint32_t* tokens, size_t token_count,
                                     kvt_sequence** sequence);
/* Releases its blocks and frees it. */
KVT_API void kvt_sequence_close(kvt_sequence* sequence);

/* Waits until the cached prefix is in the pool. Blocks that could not be loaded are dropped from
 * it: `cached_tokens` shrinks and private blocks take the place of the lost ones. After KVT_OK the
 * cached prefix is usable and the block table final for the tokens so far. Returns at once if
 * nothing is being loaded. Errors: KVT_TIMEOUT (call again), KVT_STALE_HANDLE,
 * KVT_RESOURCE_EXHAUSTED (call again or close). */
KVT_API kvt_status kvt_sequence_wait(kvt_sequence* sequence, int64_t timeout_ms);

typedef struct kvt_sequence_info {
  size_t size;
  uint64_t tokens;          /* so far */
  uint64_t cached_tokens;   /* of the first ones: came from the cache, need not be computed */
  uint64_t computed_tokens; /* at least cached_tokens */
  uint64_t blocks;          /* in the block table; more than tokens need if some are reserved */
  uint64_t pool_tokens;     /* of cached_tokens: found in the pool, in host memory, on disk */
  uint64_t host_tokens;
  uint64_t disk_tokens;
  uint64_t attachment; /* kvt_pool_info.attachment when it was opened */
  void* base;          /* of the pool these block numbers belong to; NULL unless host memory */
  int32_t ready;       /* 0: kvt_sequence_wait is due */
  kvt_miss miss;       /* why the cached prefix ended, KVT_MISS_NONE if all asked for was found */
  uint8_t reserved[3];
  uint64_t
      load_us; /* expected when it was opened, with a plan or a deadline: until the prefix is */
  uint64_t ready_us; /* there; until the rest is computed as well, if that cost is known */
} kvt_sequence_info;
KVT_API kvt_status kvt_sequence_get_info(const kvt_sequence* sequence, kvt_sequence_info* info);

/* KVT_OK while everything the sequence holds is still protected by its references; does no round
 * trip. Errors: KVT_STALE_HANDLE. */
KVT_API kvt_status kvt_sequence_check(kvt_sequence* sequence);

/* Writes the pool block of each logical block and their number. Errors: KVT_INVALID_ARGUMENT
 * (capacity too small; `*count` is set), KVT_WRONG_STATE (wait is due). `indices` may be NULL with
 * capacity 0 to ask for the number. */
KVT_API kvt_status kvt_sequence_block_table(const kvt_sequence* sequence, int32_t* indices,
                                            size_t capacity, size_t* count);
/* Writes block_index * block_tokens + offset of tokens [first, first + count). Errors:
 * KVT_INVALID_ARGUMENT (beyond the sequence), KVT_WRONG_STATE (wait is due). */
KVT_API kvt_status kvt_sequence_slot_mapping(const kvt_sequence* sequence, uint64_t first,
                                             size_t count, int64_t* slots);

/* Adds tokens and the blocks they need. On failure the sequence is as before. Errors:
 * KVT_RESOURCE_EXHAUSTED, KVT_UNAVAILABLE, KVT_STALE_HANDLE, KVT_WRONG_STATE (wait is due). */
KVT_API kvt_status kvt_sequence_append(kvt_sequence* sequence, const uint32_t* tokens,
                                       size_t count);

/* Says that the KV of the first `tokens` tokens is completely written (on a device: the stream has
 * been waited for) and commits the blocks this fills. Never goes back. Errors: KVT_INVALID_ARGUMENT
 * (more than there are), KVT_STALE_HANDLE, KVT_WRONG_STATE (wait is due). */
KVT_API kvt_status kvt_sequence_mark_computed(kvt_sequence* sequence, uint64_t tokens);

/* Commits the partial block at the end of the computed tokens, so that it too can be found. The
 * sequence stays usable: appending copies that block first. Errors: KVT_WRONG_STATE (wait is due;
 * or "tokens_not_computed": there are tokens beyond the computed ones), KVT_STALE_HANDLE. */
KVT_API kvt_status kvt_sequence_finish(kvt_sequence* sequence);

/* A second sequence with the same tokens: committed blocks are shared, private ones copied. Both
 * are independent from then on. Errors as of open; KVT_WRONG_STATE (wait is due). */
KVT_API kvt_status kvt_sequence_fork(kvt_sequence* sequence, kvt_sequence** fork);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVTIER_CLIENT_KVTIER_SEQUENCE_H_ */
