/* SPDX-License-Identifier: Apache-2.0
 * Token ids: which tokens blocks hold, for the events that routers get from the daemon. They are
 * used for nothing else: blocks are stored and found without them. A daemon keeps them only for
 * tenants that its configuration names (events.token_ids), since ids are prompts; another one does
 * not look at them, so that it is asked first. Sequences (kvtier_sequence.h) tell their ids by
 * themselves.
 *
 * Ids are told before kvt_commit or kvt_region_store names the blocks, or at about the same time by
 * another connection: those of blocks that are not cached are kept for half a minute. The first ids
 * of a block stay. They should be told only of blocks whose hash depends on nothing but tokens: a
 * router that reads the ids of a block with a LoRA or an image would take it for another.
 */
#ifndef KVTIER_KVTIER_TOKENS_H_
#define KVTIER_KVTIER_TOKENS_H_

#include "kvtier.h"

#ifdef __cplusplus
extern "C" {
#endif

/* These, and kvt_region_tokens_wanted and kvt_region_give_tokens of kvtier_region.h.
 *
 * Sets `*wanted` to 1 if the daemon keeps ids of the pool's blocks, else 0. One round
 * trip; the answer holds for as long as the connection does. Errors: KVT_UNAVAILABLE, KVT_TIMEOUT.
 */
KVT_API kvt_status kvt_tokens_wanted(kvt_pool* pool, int* wanted);

/* Tells the ids of `count` blocks: `ids` has those of the first block, then those of the second.
 * `counts` says how many each block has; NULL: all blocks are full. Only sends. Errors:
 * KVT_INVALID_ARGUMENT "bad_token_count" (not 1 to the model's block_tokens each, or not `id_count`
 * together); KVT_UNAVAILABLE. */
KVT_API kvt_status kvt_give_tokens(kvt_pool* pool, const kvt_hash* hashes, const uint16_t* counts,
                                   size_t count, const uint32_t* ids, size_t id_count);

#ifdef __cplusplus
}
#endif
#endif
